// SPDX-License-Identifier: Apache-2.0
// Graphs of samples of ops, and what they read.
#pragma once

#include <ATen/core/Tensor.h>

#include <random>
#include <vector>

#include "penstock/graph.h"
#include "support/random_ops.h"
#include "torch/op_samples.h"

namespace penstock::test {

std::vector<at::Tensor> inputs_of(const OpCase& c, std::mt19937_64& random);
// The same graph with f64 replaced.
Graph in_dtype(Graph graph, DType dtype);
// The sample's op by itself. Where `spread`, each operand is the first of two that lie element by element in an input of the graph, so that
// the op reads a view with gaps.
Graph graph_of(const OpSample& sample, bool spread);

}  // namespace penstock::test
