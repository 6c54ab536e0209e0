// dnn-partitioning's JSON (Tarnawski et al., NeurIPS 2020). A layer is several nodes there, forward and backward, that share a colour: they
// become one node, and the graph is that of the forward ones.
#include <algorithm>

#include "base/text.h"
#include "plan/read.h"

namespace penstock {
namespace {

constexpr double kMillisecond = 1e-3;

struct Member {
  int node;  // of the graph: its colour's
  bool backward;
  double transfer = 0;  // milliseconds, of its output
};

// A node for each colour that has forward members, in the order of the first of them.
class Colours {
 public:
  Colours(const JsonNode& nodes, PlanGraph& graph) : graph_(graph) {
    // Forward nodes first: a colour takes its place and name from them.
    for (const bool backward : {false, true})
      nodes.each_element([&](const JsonNode& node) {
        const bool is_backward = node.has("isBackwardNode") && node.at("isBackwardNode").whole(0, 1) == 1;
        if (is_backward == backward) add(node, backward);
      });
  }

  Member& member(const JsonNode& id) { return members_[static_cast<std::size_t>(ids_.find(id))]; }

 private:
  int node_of_colour(const JsonNode& node, bool backward) {
    const int fresh = static_cast<int>(graph_.nodes.size());
    int found = fresh;
    if (node.has("colorClass")) found = by_colour_.emplace(node.at("colorClass").whole(0), fresh).first->second;
    if (found < fresh) return found;
    if (backward) node.fail("is a backward node, and no forward node has its colorClass");
    graph_.nodes.emplace_back().name = node.has("name") ? node.at("name").text() : std::to_string(node.at("id").whole(0));
    graph_.nodes.back().cpu_seconds = 0;
    graph_.nodes.back().costs.resize(1);
    return found;
  }

  void add(const JsonNode& node, bool backward) {
    ids_.add(node.at("id"), static_cast<int>(members_.size()));
    const int number = node_of_colour(node, backward);
    members_.push_back({number, backward});
    PlanNode& out = graph_.nodes[static_cast<std::size_t>(number)];
    out.cpu_seconds += read_amount(node.at("cpuLatency")) * kMillisecond;
    const double seconds = read_amount(node.at("fpgaLatency")) * kMillisecond, bytes = read_amount(node.at("size"));
    if (node.at("supportedOnFpga").whole(0, 1) == 0) out.costs.clear();
    if (out.costs.empty()) return;  // it runs on host processors only
    NodeCost& cost = out.costs[0];
    (backward ? cost.backward : cost.forward) += seconds;
    cost.resident_bytes += bytes;
    // `size` is all that the node keeps; the file does not say how much of it is parameters.
    if (!backward) cost.parameter_bytes += bytes;
  }

  PlanGraph& graph_;
  std::map<std::int64_t, int> by_colour_;
  NodeIds ids_;
  std::vector<Member> members_;
};

}  // namespace

PlanGraph read_dnn_partitioning(const JsonNode& root) {
  PlanGraph graph;
  graph.memory = read_amount(root.at("maxSizePerFPGA"));
  graph.devices = static_cast<int>(root.at("maxFPGAs").whole(0, INT32_MAX));
  graph.cpus = root.has("maxCPUs") ? static_cast<int>(root.at("maxCPUs").whole(0, INT32_MAX)) : 0;
  Colours colours(root.at("nodes"), graph);
  for (PlanNode& node : graph.nodes) node.transfer_seconds = 0;
  std::set<std::pair<int, int>> known;
  root.at("edges").each_element([&](const JsonNode& edge) {
    Member &from = colours.member(edge.at("sourceId")), &to = colours.member(edge.at("destId"));
    const double bytes = read_amount(edge.at("size")), transfer = read_amount(edge.at("cost"));
    if (from.backward != to.backward) return;  // what the backward pass keeps: it moves with the colour
    PlanNode& source = graph.nodes[static_cast<std::size_t>(from.node)];
    // The cost of all edges out of a node is one transfer: its output's.
    source.transfer_seconds += std::max(transfer - from.transfer, 0.0) * kMillisecond;
    from.transfer = std::max(from.transfer, transfer);
    if (from.backward || from.node == to.node) return;
    source.output_bytes = std::max(source.output_bytes, bytes);
    if (known.emplace(from.node, to.node).second) graph.edges.push_back({from.node, to.node, bytes});
  });
  return graph;
}

}  // namespace penstock
