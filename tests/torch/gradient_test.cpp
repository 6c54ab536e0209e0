// SPDX-License-Identifier: Apache-2.0
// Every gradient against central finite differences in f64.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <set>

#include "base/text.h"
#include "ops/definition.h"
#include "support/random_ops.h"
#include "support/seed.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using test::GraphRunner;
using test::OpCase;

// The directional derivative of output 0 along `direction` of input i.
double slope(GraphRunner& runner, std::size_t i, const at::Tensor& direction, double h) {
  const at::Tensor kept = runner.input(i).clone();
  const auto loss_at = [&](double t) {
    runner.input(i).copy_(kept + direction * t);
    runner.run();
    return runner.output(0).item().toDouble();
  };
  // Fourth order and a small step: truncation stays far below rounding, and no kink (a maximum, a threshold) is likely to be crossed.
  const double d = (8 * (loss_at(h) - loss_at(-h)) - (loss_at(2 * h) - loss_at(-2 * h))) / (12 * h);
  runner.input(i).copy_(kept);
  return d;
}

void check_case(const OpCase& c, std::mt19937_64& random) {
  GraphRunner runner(c.graph);
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    const auto& range = c.inputs[i];
    runner.input(i).copy_(test::random_tensor(random, c.graph.type(c.graph.inputs[i]), range.low, range.high, range.gap));
  }
  runner.run();
  std::vector<at::Tensor> gradients;
  for (std::size_t o = 1; o < c.graph.outputs.size(); ++o) gradients.push_back(runner.output(o).clone());
  std::size_t next = 0;
  for (std::size_t i = 0; i < c.inputs.size(); ++i) {
    if (!c.inputs[i].differentiable) continue;
    const at::Tensor& gradient = gradients[next++];
    for (int trial = 0; trial < 3; ++trial) {
      const at::Tensor direction = test::random_tensor(random, c.graph.type(c.graph.inputs[i]), -1, 1);
      const double expected = slope(runner, i, direction, 1e-6);
      const double found = (gradient * direction).sum().item().toDouble();
      EXPECT_NEAR(found, expected, 1e-7 * std::max(1.0, std::abs(expected))) << c.op << ", input " << i << "\n" << print(c.graph);
    }
  }
  EXPECT_EQ(next, gradients.size());
}

TEST(Gradients, EqualFiniteDifferences) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  std::set<std::string> seen;
  for (int round = 0; round < 10; ++round)
    for (const OpCase& c : test::random_cases(random)) {
      seen.insert(c.op);
      check_case(c, random);
      if (HasFailure()) return;
    }
  for (std::string_view name : op_names())
    EXPECT_TRUE(!find_op(name)->vjp || find_op(name)->collective || name == "to" || seen.contains(std::string(name)))
        << name << " has no case";
}

}  // namespace
}  // namespace penstock
