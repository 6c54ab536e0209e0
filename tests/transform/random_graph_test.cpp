// SPDX-License-Identifier: Apache-2.0
// Random graphs: every pass keeps what the outputs compute, and finds nothing more to do the second time.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/random_graph.h"
#include "support/rounds.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::output_expressions;

template <class Pass>
void expect_kept(bool loops, const Pass& pass) {
  for (std::uint64_t seed = 0; seed < test::rounds(300u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Graph graph = test::random_graph(random, loops);
    const Graph after = pass(graph);
    verify_structure(after);
    EXPECT_EQ(output_expressions(after), output_expressions(graph)) << print(graph) << print(after);
    EXPECT_EQ(print(eliminate_dead_code(pass(after))), print(eliminate_dead_code(after)));
  }
}

TEST(RandomGraphs, DeadCode) {
  expect_kept(true, eliminate_dead_code);
}

TEST(RandomGraphs, CommonSubexpressions) {
  expect_kept(true, eliminate_common_subexpressions);
}

TEST(RandomGraphs, Hoisting) {
  expect_kept(true, hoist_invariants);
}

TEST(RandomGraphs, Recomputation) {
  expect_kept(false, [](const Graph& graph) { return recompute(graph, [](const Op& op) { return op.stage == "a" || op.stage == "c"; }); });
}

// Any ops may be computed again. Whether one is follows from its hash, so that of the same graph it is the same ones.
TEST(RandomGraphs, RecomputationOfAnyOps) {
  for (std::uint64_t part = 2; part < 6; ++part)
    expect_kept(false, [&](const Graph& graph) {
      return recompute(graph, [&](const Op& op) { return std::hash<std::string>()(op.name + op.stage) % part == 0; });
    });
}

// After recomputation no backward op of the stage reads one of its forward ops.
TEST(RandomGraphs, RecomputedStagesKeepNothing) {
  for (std::uint64_t seed = 0; seed < test::rounds(300u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Graph graph = test::random_graph(random, false);
    for (Op& op : graph.ops)
      if (op.stage == "c") op.stage = "a";
    if (std::none_of(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.stage == "a"; })) continue;
    const Graph after = recompute(graph, [](const Op& op) { return op.stage == "a"; });
    const std::vector<OpId> producer = producers(after);
    for (const Op& op : after.ops) {
      if (op.phase == Phase::forward || op.stage != "a") continue;
      for (ValueId operand : op.operands) {
        const OpId from = producer[operand.index()];
        EXPECT_TRUE(!from || after.ops[from.index()].phase == Phase::backward || after.ops[from.index()].stage != "a") << print(after);
      }
    }
  }
}

}  // namespace
}  // namespace penstock
