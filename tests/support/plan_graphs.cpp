// SPDX-License-Identifier: Apache-2.0
#include "support/plan_graphs.h"

#include <algorithm>
#include <string>

#include "base/numbers.h"
#include "support/random_schedule.h"

namespace penstock::test {
namespace {

// The ends of a series-parallel order of the nodes [first, last). In a series edges go from the last nodes of one part to the first nodes
// of the next.
struct Ends {
  std::vector<int> first, last;
};
Ends join_random(Random& random, int first, int last, bool series, std::vector<std::pair<int, int>>& edges) {
  if (last - first == 1) return {{first}, {first}};
  const int parts = draw(random, 2, std::min(last - first, 4));
  std::vector<int> bounds = {first, last};
  while (static_cast<int>(bounds.size()) <= parts) {
    const int bound = draw(random, first + 1, last - 1);
    if (std::find(bounds.begin(), bounds.end(), bound) == bounds.end()) bounds.push_back(bound);
  }
  std::sort(bounds.begin(), bounds.end());
  Ends ends;
  for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
    const Ends part = join_random(random, bounds[i], bounds[i + 1], !series, edges);
    if (!series || i == 0) ends.first.insert(ends.first.end(), part.first.begin(), part.first.end());
    if (series)
      for (const int from : ends.last)
        for (const int to : part.first) edges.emplace_back(from, to);
    if (series) ends.last.clear();
    ends.last.insert(ends.last.end(), part.last.begin(), part.last.end());
  }
  return ends;
}

std::vector<double> random_times(Random& random, int nodes) {
  std::vector<double> times;
  for (int i = 0; i < nodes; ++i) times.push_back(draw(random, 1, 32) / 16.0);
  return times;
}

}  // namespace

PlanGraph plan_graph(const std::vector<double>& forward, const std::vector<std::pair<int, int>>& edges, double bytes) {
  PlanGraph graph;
  graph.name = "test";
  for (std::size_t i = 0; i < forward.size(); ++i) {
    PlanNode& node = graph.nodes.emplace_back();
    node.name = "n" + std::to_string(i);
    node.output_bytes = bytes;
    NodeCost& cost = node.costs.emplace_back();
    cost.forward = forward[i];
    cost.backward = 2 * forward[i];
    cost.live_bytes = 1;
  }
  for (const auto& [from, to] : edges) graph.edges.push_back({from, to, bytes});
  return graph;
}

PlanGraph plan_chain(const std::vector<double>& forward, double bytes) {
  std::vector<std::pair<int, int>> edges;
  for (std::size_t i = 1; i < forward.size(); ++i) edges.emplace_back(static_cast<int>(i) - 1, static_cast<int>(i));
  return plan_graph(forward, edges, bytes);
}

PlanGraph in_a_row(PlanGraph graph) {
  const auto linked = [&](int from) {
    return std::any_of(graph.edges.begin(), graph.edges.end(), [&](const PlanEdge& e) { return e.from == from && e.to == from + 1; });
  };
  for (int i = 0; i + 1 < static_cast<int>(graph.nodes.size()); ++i)
    if (!linked(i)) graph.edges.push_back({i, i + 1, 0});
  return graph;
}

PlanGraph random_series_parallel(Random& random, const RandomPlanGraphOptions& options) {
  std::vector<std::pair<int, int>> edges;
  join_random(random, 0, options.nodes, coin(random, 0.7), edges);
  PlanGraph graph = plan_graph(random_times(random, options.nodes), edges);
  const std::vector<bool> reach = reach_of(graph);
  for (int a = 0; a < options.nodes; ++a)
    for (int b = a + 1; b < options.nodes; ++b)
      if (reach[at(a * options.nodes + b)] && std::find(edges.begin(), edges.end(), std::pair(a, b)) == edges.end() &&
          coin(random, options.skip))
        graph.edges.push_back({a, b, 0});
  for (PlanNode& node : graph.nodes) {
    NodeCost& cost = node.costs[0];
    cost.live_bytes = draw(random, 1, 8);
    cost.resident_bytes = draw(random, 0, 8);
    cost.parameter_bytes = draw(random, 0, 8);
    node.output_bytes = draw(random, 0, 4);
    for (const int samples : {2, 4}) {
      if (!options.batches) break;
      NodeCost larger = node.costs[0];
      larger.samples = samples;
      larger.forward *= 0.5 + 0.5 * samples;
      larger.backward *= 0.5 + 0.5 * samples;
      larger.live_bytes *= samples;
      node.costs.push_back(larger);
    }
  }
  for (PlanEdge& edge : graph.edges) edge.bytes = graph.nodes[at(edge.from)].output_bytes;
  return graph;
}

PlanGraph random_plan_graph(Random& random, int nodes, double edge) {
  std::vector<std::pair<int, int>> edges;
  for (int a = 0; a < nodes; ++a)
    for (int b = a + 1; b < nodes; ++b)
      if (coin(random, edge)) edges.emplace_back(a, b);
  return plan_graph(random_times(random, nodes), edges, draw(random, 0, 2));
}

PlanGraph wide_modules(std::mt19937_64& random, int pieces) {
  std::vector<std::pair<int, int>> edges;
  int nodes = 1;
  for (int module = 0; module < 10; ++module) {
    const int fork = nodes - 1;
    std::vector<int> ends;
    for (const int length : {3, 6, 9, 13, 4}) {
      for (int i = 0; i < length; ++i, ++nodes) edges.emplace_back(i == 0 ? fork : nodes - 1, nodes);
      ends.push_back(nodes - 1);
    }
    for (const int end : ends) edges.emplace_back(end, nodes);
    ++nodes;
  }
  std::vector<int> waits(at(nodes), 0), ready = {0}, order;
  for (const auto& edge : edges) ++waits[at(edge.second)];
  while (!ready.empty()) {
    std::swap(ready[random() % ready.size()], ready.back());
    order.push_back(ready.back());
    ready.pop_back();
    for (const auto& [from, to] : edges)
      if (from == order.back() && --waits[at(to)] == 0) ready.push_back(to);
  }
  const std::vector<double> times = random_times(random, nodes);
  std::vector<double> forward(at(nodes));
  for (int piece = 0; piece < pieces; ++piece) {
    const auto begin = order.begin() + piece * nodes / pieces, end = order.begin() + (piece + 1) * nodes / pieces;
    double sum = 0;
    for (auto node = begin; node != end; ++node) sum += 3 * times[at(*node)];
    for (auto node = begin; node != end; ++node) forward[at(*node)] = times[at(*node)] / sum;
  }
  return plan_graph(forward, edges);
}

std::vector<bool> reach_of(const PlanGraph& graph) {
  const std::size_t n = graph.nodes.size();
  std::vector<bool> reach(n * n);
  for (std::size_t a = n; a-- > 0;)
    for (const PlanEdge& edge : graph.edges) {
      if (edge.from != static_cast<int>(a)) continue;
      reach[a * n + at(edge.to)] = true;
      for (std::size_t b = 0; b < n; ++b)
        if (reach[at(edge.to) * n + b]) reach[a * n + b] = true;
    }
  return reach;
}

}  // namespace penstock::test
