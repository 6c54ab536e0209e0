// SPDX-License-Identifier: Apache-2.0
#include "support/random_ops.h"

#include <gtest/gtest.h>

#include <set>

#include "ops/definition.h"
#include "ops/verify.h"
#include "support/rounds.h"

namespace penstock {
namespace {

TEST(RandomOps, CoverEveryDifferentiableOp) {
  std::mt19937_64 random(1);
  std::set<std::string> covered;
  for (const test::OpCase& c : test::random_cases(random)) covered.insert(c.op);
  for (std::string_view name : op_names())
    if (find_op(name)->vjp && !find_op(name)->collective && name != "to") {
      EXPECT_TRUE(covered.contains(std::string(name))) << name;
    }
}

// A backward op's results have the types of what it is the cotangent of, over random shapes.
TEST(RandomOps, GradientsHaveTheTypesOfTheirInputs) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u); ++seed) {
    std::mt19937_64 random(seed);
    for (const test::OpCase& c : test::random_cases(random)) {
      SCOPED_TRACE("seed " + std::to_string(seed) + "\n" + print(c.graph));
      verify(c.graph);
      EXPECT_EQ(c.inputs.size(), c.graph.inputs.size());
      EXPECT_EQ(c.graph.type(c.graph.outputs[0]), (TensorType{DType::f64, {}}));
      std::size_t output = 1;
      for (std::size_t i = 0; i < c.inputs.size(); ++i)
        if (c.inputs[i].differentiable) {
          ASSERT_LT(output, c.graph.outputs.size());
          EXPECT_EQ(c.graph.type(c.graph.outputs[output++]), c.graph.type(c.graph.inputs[i]));
        }
      EXPECT_EQ(output, c.graph.outputs.size());
      const Graph again = parse_graph(print(c.graph));
      verify(again);
      EXPECT_EQ(print(again), print(c.graph));
    }
  }
}

}  // namespace
}  // namespace penstock
