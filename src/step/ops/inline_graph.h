// SPDX-License-Identifier: Apache-2.0
// A graph that is there already becomes part of one that is being traced.
#pragma once

#include <vector>

#include "ops/builder.h"
#include "penstock/graph.h"

namespace penstock {

// Appends the graph's ops to what `builder` makes, on these operands (one for each input), and gives its outputs. Sequence numbers go on
// from the trace's.
std::vector<Tensor> inline_graph(Builder& builder, const Graph& graph, const std::vector<Tensor>& operands);

}  // namespace penstock
