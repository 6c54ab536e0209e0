// SPDX-License-Identifier: Apache-2.0
// A graph as a tree of series and parallel components, which a planner can take apart.
#pragma once

#include <utility>
#include <vector>

namespace penstock {

// A tree over the nodes of an acyclic graph. Everything in a component of a series comes before everything in the components after it;
// components of a parallel do not depend on each other. So the tree is an order of the nodes that keeps every edge. Where `exact` holds, it
// orders nothing that the graph leaves open (several sources or sinks are as good as one before and one after them all).
struct SeriesParallel {
  enum class Kind { kNode, kSeries, kParallel };
  struct Component {
    Kind kind = Kind::kNode;
    int node = -1;  // for kNode
    // For the others: at least two, none of the own kind; a series lists them from first to last, a parallel by smallest node.
    std::vector<int> components;
  };
  std::vector<Component> components;  // a component stands behind those inside of it; the last is the whole
  bool exact = true;
};

// Nodes are in topological order: every edge goes to a larger number. weights: what each node takes; only a completion looks at them.
// Linear in nodes and edges for each level of the tree.
SeriesParallel series_parallel(const std::vector<double>& weights, const std::vector<std::pair<int, int>>& edges);

}  // namespace penstock
