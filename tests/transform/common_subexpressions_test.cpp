// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

TEST(CommonSubexpressions, MergesChainsInOrder) {
  const Graph graph = graph_of(R"(graph @g(%a: f32[2]) -> (f32[2], f32[2]) {
  %0: f32[2] = mul(%a) {other=2.0, origin="h.0"}
  %1: f32[2] = mul(%a) {other=2.0, origin="h.1"}
  %2: f32[2] = exp(%0)
  %3: f32[2] = exp(%1)
  return %2, %3
})");
  EXPECT_EQ(text_of(eliminate_common_subexpressions(graph)), R"(graph @g(%a: f32[2]) -> (f32[2], f32[2]) {
  %0: f32[2] = mul(%a) {other=2.0, origin="h.0"}
  %1: f32[2] = exp(%0)
  return %1, %1
}
)");
}

TEST(CommonSubexpressions, KeepsWhatDiffers) {
  const std::string text = R"(graph @g(%a: f32[2], %b: f32[2]) -> () {
  %0: f32[2] = sub(%a, %b)
  %1: f32[2] = sub(%b, %a)
  %2: f32[2] = mul(%a) {other=2.0}
  %3: f32[2] = mul(%a) {other=3.0}
  %4: f32[2] = mul(%a) {other=3.0, stage="s"}
  %5: f32[2] = mul(%a) {other=3.0, stage="s", phase="backward"}
  %6: f32[2] = their::op(%a)
  %7: f32[3] = their::op(%a)
  return
}
)";
  EXPECT_EQ(text_of(eliminate_common_subexpressions(graph_of(text))), text);
}

// Otherwise the second gradient would belong to a forward op that is gone.
TEST(CommonSubexpressions, BackwardOpsFollowTheirMergedForwardOp) {
  const Graph graph = graph_of(R"(graph @g(%a: f32[2], %g: f32[2]) -> (f32[2], f32[2]) {
  %0: f32[2] = sin(%a) {sequence=1}
  %1: f32[2] = sin(%a) {sequence=2}
  %2: f32[2] = mul(%g, %0) {phase="backward", sequence=1}
  %3: f32[2] = add(%g, %1) {phase="backward", sequence=2}
  return %2, %3
})");
  EXPECT_EQ(text_of(eliminate_common_subexpressions(graph)), R"(graph @g(%a: f32[2], %g: f32[2]) -> (f32[2], f32[2]) {
  %0: f32[2] = sin(%a) {sequence=1}
  %1: f32[2] = mul(%g, %0) {phase="backward", sequence=1}
  %2: f32[2] = add(%g, %0) {phase="backward", sequence=1}
  return %1, %2
}
)");
}

TEST(CommonSubexpressions, InsideLoops) {
  const Graph graph = graph_of(R"(graph @g(%x: f32[4]) -> (f32[2]) {
  %0: f32[2] = accumulate(%x) {microbatches=2, split=1} (%x: f32[2]) -> (f32[2]) {
    %0: f32[2] = exp(%x)
    %1: f32[2] = exp(%x)
    %2: f32[2] = add(%0, %1)
    return %2
  }
  return %0
})");
  EXPECT_EQ(text_of(eliminate_common_subexpressions(graph)), R"(graph @g(%x: f32[4]) -> (f32[2]) {
  %0: f32[2] = accumulate(%x) {microbatches=2, split=1} (%x: f32[2]) -> (f32[2]) {
    %0: f32[2] = exp(%x)
    %1: f32[2] = add(%0, %0)
    return %1
  }
  return %0
}
)");
}

}  // namespace
}  // namespace penstock
