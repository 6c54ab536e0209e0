// SPDX-License-Identifier: Apache-2.0
// A part of a graph as a graph of its own.
#pragma once

#include <string>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

// A value at which a part begins, and its name there.
struct GivenValue {
  ValueId value;
  std::string name;
};

// The part that computes `outputs` from the given values and from the graph's inputs: the ops that they need, in the graph's order. Its
// inputs are those that are read: the graph's own in their order, then the given ones.
Graph subgraph(const Graph& graph, const std::string& name, const std::vector<GivenValue>& given, const std::vector<ValueId>& outputs);

}  // namespace penstock
