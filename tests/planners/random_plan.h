// SPDX-License-Identifier: Apache-2.0
// Small random graphs with costs, and every way to cut them into stages.
#pragma once

#include <functional>
#include <random>
#include <vector>

#include "base/text.h"
#include "penstock/plan.h"

namespace penstock::test {

inline double pick(std::mt19937_64& random, int most) {
  return static_cast<double>(random() % static_cast<std::uint64_t>(most + 1));
}

// Whole numbers, so that sums are exact.
inline PlanGraph random_plan_graph(std::mt19937_64& random, int nodes) {
  PlanGraph graph;
  graph.name = "random";
  for (int i = 0; i < nodes; ++i) {
    PlanNode& node = graph.nodes.emplace_back();
    node.name = concat("n", i);
    NodeCost cost;
    cost.forward = pick(random, 5);
    cost.backward = pick(random, 10);
    cost.live_bytes = pick(random, 4);
    cost.resident_bytes = pick(random, 6);
    cost.parameter_bytes = pick(random, 6);
    node.costs = {cost};
    node.output_bytes = pick(random, 8);
    for (int before = 0; before < i; ++before)
      if (random() % 3 == 0) graph.edges.push_back({before, i, graph.nodes[static_cast<std::size_t>(before)].output_bytes});
  }
  return graph;
}

using Mask = unsigned;  // of nodes

// Downsets by their definition.
inline std::vector<Mask> all_downsets(const PlanGraph& graph) {
  std::vector<Mask> out;
  for (Mask set = 0; set < Mask{1} << graph.nodes.size(); ++set) {
    bool closed = true;
    for (const PlanEdge& edge : graph.edges) closed = closed && !((set >> edge.to & 1) && !(set >> edge.from & 1));
    if (closed) out.push_back(set);
  }
  return out;
}

// Calls `see` with the downsets of every chain from none to all nodes, both included.
inline void each_chain(const PlanGraph& graph, const std::function<void(const std::vector<Mask>&)>& see) {
  const std::vector<Mask> sets = all_downsets(graph);
  const Mask all = (Mask{1} << graph.nodes.size()) - 1;
  std::vector<Mask> chain = {0};
  const std::function<void()> grow = [&] {
    if (chain.back() == all) return see(chain);
    for (const Mask set : sets)
      if (set != chain.back() && (set & chain.back()) == chain.back()) {
        chain.push_back(set);
        grow();
        chain.pop_back();
      }
  };
  grow();
}

// Calls `see` with every list of `stages` choices out of `options`.
inline void each_choice(int stages, int options, const std::function<void(const std::vector<int>&)>& see) {
  std::vector<int> choice(static_cast<std::size_t>(stages), 0);
  while (true) {
    see(choice);
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == options) choice[i++] = 0;
    if (i == choice.size()) return;
  }
}

template <class Value>
double sum_over(const PlanGraph& graph, Mask set, Value&& value) {
  double sum = 0;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (set >> i & 1) sum += value(graph.nodes[i]);
  return sum;
}

// Bytes of the outputs of `set` that a node outside reads.
inline double cut_bytes(const PlanGraph& graph, Mask set) {
  Mask cut = 0;
  for (const PlanEdge& edge : graph.edges)
    if ((set >> edge.from & 1) && !(set >> edge.to & 1)) cut |= Mask{1} << edge.from;
  return sum_over(graph, cut, [](const PlanNode& node) { return node.output_bytes; });
}

}  // namespace penstock::test
