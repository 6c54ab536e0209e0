// SPDX-License-Identifier: Apache-2.0
// Every op on a device whose memory the host cannot read, against the host's kernels. A host that looks at the stand-in's memory ends with
// a signal, so that no kernel reads it unnoticed.
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include "base/text.h"
#include "ops/definition.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "support/random_ops.h"
#include "support/seed.h"
#include "torch/device.h"
#include "torch/op_samples.h"
#include "torch/run_graph.h"
#include "torch/sample_graphs.h"

namespace penstock {
namespace {

using T = at::Tensor;

// How far apart two orders of summation lie.
double tolerance(DType dtype) {
  return dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-5 : 3e-2;
}

bool is_right(const Graph& graph) {
  try {
    verify(graph);
    return true;
  } catch (const Error&) {
    return false;
  }
}

TEST(OnTheStandin, EveryOpEqualsTheHosts) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  const c10::Device standin = open_device("standin");
  for (const test::OpSample& sample : test::op_samples())
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
      if (find_op(sample.op.name)->collective) continue;
      std::vector<T> dense, spread;
      const Graph graph = test::in_dtype(test::graph_of(sample, false), dtype);
      if (dtype == DType::bf16 && !is_right(graph)) continue;  // an op whose results are not all of its operands' dtype
      for (std::size_t i = 0; i < sample.operands.size(); ++i) {
        const auto& operand = sample.operands[i];
        dense.push_back(test::random_tensor(random, graph.type(graph.inputs[i]), operand.low, operand.high));
        spread.push_back(at::stack({dense[i], at::zeros_like(dense[i])}, -1));
      }
      std::vector<T> expected;
      try {
        expected = test::run_graph(graph, dense);
      } catch (const Error&) {
        EXPECT_EQ(dtype, DType::bf16) << sample.text();  // an op that the host has not in bf16
        continue;
      }
      const std::vector<T> found = test::run_graph(graph, dense, standin);
      const std::vector<T> with_gaps = test::run_graph(test::in_dtype(test::graph_of(sample, true), dtype), spread, standin);
      for (std::size_t o = 0; o < expected.size(); ++o) {
        EXPECT_LT(test::relative_difference(found[o], expected[o], 1), tolerance(dtype)) << sample.text() << ", output " << o;
        EXPECT_LT(test::relative_difference(with_gaps[o], expected[o], 1), tolerance(dtype)) << sample.text() << " with gaps, output " << o;
      }
    }
}

TEST(OnTheStandin, GraphsAroundEveryOpAddWhatTheyWouldStore) {
  const std::uint64_t seed = test::drawn_seed();
  SCOPED_TRACE(concat("seed ", seed));
  std::mt19937_64 random(seed);
  const c10::Device standin = open_device("standin");
  for (const test::OpCase& c : test::random_cases(random)) {
    const Graph graph = test::in_dtype(c.graph, DType::f32);
    const std::vector<T> inputs = test::inputs_of(c, random), expected = test::run_graph(graph, inputs);
    test::GraphRunner runner(graph, std::vector<ResultMode>(expected.size(), ResultMode::add), standin);
    for (std::size_t i = 0; i < inputs.size(); ++i) runner.input(i).copy_(inputs[i]);
    for (std::size_t o = 0; o < expected.size(); ++o) runner.output(o).fill_(1);
    runner.run();
    runner.run();
    for (std::size_t o = 0; o < expected.size(); ++o)
      EXPECT_LT(test::relative_difference(runner.output(o).cpu(), expected[o] * 2 + 1, 1), 1e-4) << c.op << ", output " << o << "\n"
                                                                                                 << print(graph);
  }
}

}  // namespace
}  // namespace penstock
