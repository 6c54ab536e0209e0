// SPDX-License-Identifier: Apache-2.0
// A small random graph around every differentiable op, for checking gradients against finite differences.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "penstock/graph.h"

namespace penstock::test {

// The values that an input may hold: reals in [low, high) with |x| >= gap (a kink or a pole lies at 0), or integers low <= i < high.
struct InputRange {
  double low = -1, high = 1;
  double gap = 0;
  bool differentiable = true;  // false for integers and for the weights of the loss
};

struct OpCase {
  std::string op;                  // the op under test
  Graph graph;                     // outputs: the loss, f64[], then its gradient by each differentiable input, in order
  std::vector<InputRange> inputs;  // one per input of the graph
};

// One case for every op that has a gradient, except "to", whose rounding hides differences. All floating inputs are f64;
// the loss is the sum of the op's outputs, each times random weights.
std::vector<OpCase> random_cases(std::mt19937_64& random);

}  // namespace penstock::test
