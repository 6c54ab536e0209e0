// SPDX-License-Identifier: Apache-2.0
// The graph of a task, as programs share it.
#pragma once

#include <cstdint>
#include <memory>

#include "penstock/graph.h"

namespace penstock {

struct GraphFacts;  // program/graph_facts.h

// A graph that changes no more. Copies are the same graph: programs that have a task in common have its graph once, and what follows from
// it alone (its hash, that its types are right, where its temporaries lie) is found once, by the first thread that asks. To change a
// graph, change a copy of `*graph` and assign it.
class TaskGraph {
 public:
  TaskGraph() : TaskGraph(Graph()) {}
  TaskGraph(Graph graph);

  // The graph, to read.
  const Graph& operator*() const { return *graph_; }
  const Graph* operator->() const { return graph_.get(); }
  operator const Graph&() const { return *graph_; }
  const std::shared_ptr<const Graph>& shared() const { return graph_; }
  const GraphFacts& facts() const { return *facts_; }  // what was found of it, for Penstock's own use

 private:
  std::shared_ptr<const Graph> graph_;
  std::shared_ptr<const GraphFacts> facts_;
};

// The same functions as for graphs; what they find is found once.
std::uint64_t structural_hash(const TaskGraph& graph);
void verify(const TaskGraph& graph);

}  // namespace penstock
