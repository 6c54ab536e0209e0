// A graph as series and parallel parts, so that a planner can take it apart.
#pragma once

#include <utility>
#include <vector>

namespace penstock {

// A tree over the nodes of an acyclic graph. Everything in a part of a series comes before everything in the parts after it; parts of a
// parallel do not depend on each other. So the tree is an order of the nodes: one that keeps every edge, and where `exact` holds, one that
// orders nothing that the graph leaves open (several sources or sinks are as good as one before and one after them all).
struct SeriesParallel {
  enum class Kind { kNode, kSeries, kParallel };
  struct Part {
    Kind kind = Kind::kNode;
    int node = -1;           // of kNode
    std::vector<int> parts;  // of the others: at least two, none of the own kind; in series from first to last, else by smallest node
  };
  std::vector<Part> parts;  // what is inside another stands before it; the whole is the last
  bool exact = true;
};

// Nodes in topological order: every edge goes to a larger number. weights: what a node takes; only a completion looks at them.
// Linear in nodes and edges for each level of the tree.
SeriesParallel series_parallel(const std::vector<double>& weights, const std::vector<std::pair<int, int>>& edges);

}  // namespace penstock
