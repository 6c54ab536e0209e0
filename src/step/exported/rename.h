// SPDX-License-Identifier: Apache-2.0
// Ops by name become ops of Penstock's, which its kernels, planners and layouts know.
#pragma once

#include "penstock/graph.h"

namespace penstock {

// The graph with every op of ATen's that a row of the table takes (rename_rows.h) replaced by ops of ours that give the same values, to
// 1e-6 relative in f32 and 1e-11 in f64. What is made carries the marks of the op that it replaces, or of the last
// of those that it replaces; a backward op whose forward op has become part of another carries that one's number. An op without a row, or
// with operands or attributes that its row does not take, stays by name. Losses that are means of what targets count become sums that are
// divided by a count of their own, which batch_counts looks for. Ops whose results nobody reads are left out.
// Throws Error, naming op and module, where what stays by name reads memory by strides.
Graph rename_ops(const Graph& graph);

}  // namespace penstock
