#include "plan/recomputation.h"

#include <algorithm>
#include <tuple>

namespace penstock {
namespace {

// Of one sample, each output once.
std::vector<double> input_bytes(const PlanGraph& graph) {
  std::vector<double> bytes(graph.nodes.size(), 0);
  std::vector<PlanEdge> edges = graph.edges;
  std::sort(edges.begin(), edges.end(), [](const PlanEdge& a, const PlanEdge& b) {
    return std::tie(a.to, a.from, b.bytes) < std::tie(b.to, b.from, a.bytes);  // the largest of equal outputs first
  });
  for (std::size_t i = 0; i < edges.size(); ++i) {
    if (i > 0 && edges[i].to == edges[i - 1].to && edges[i].from == edges[i - 1].from) continue;
    const NodeCost& sender = graph.nodes[static_cast<std::size_t>(edges[i].from)].costs[0];
    bytes[static_cast<std::size_t>(edges[i].to)] += edges[i].bytes / sender.samples;
  }
  return bytes;
}

}  // namespace

PlanGraph with_recomputation(PlanGraph graph) {
  const std::vector<double> inputs = input_bytes(graph);
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    std::vector<NodeCost>& costs = graph.nodes[n].costs;
    const auto alike = [&](const NodeCost& c) { return c.name == costs[0].name && c.degree == costs[0].degree; };
    if (!std::all_of(costs.begin(), costs.end(), alike)) continue;
    std::vector<NodeCost> again = costs;
    for (NodeCost& cost : again) {
      cost.name = "activation recomp";
      cost.backward += cost.forward;
      cost.live_bytes = std::min(cost.live_bytes, inputs[n] * cost.samples);
    }
    if (again[0].live_bytes < costs[0].live_bytes) costs.insert(costs.end(), again.begin(), again.end());
  }
  return graph;
}

}  // namespace penstock
