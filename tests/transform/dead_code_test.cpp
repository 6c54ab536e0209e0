// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

TEST(DeadCode, KeepsInputsAndWhatOutputsNeed) {
  const Graph graph = graph_of(R"(graph @g(%a: f32[2], %unread: f32[2]) -> (f32[2]) {state=1} {
  %0: f32[2] = neg(%a)
  %1: f32[2] = exp(%0)
  %2: f32[2] = log(%0)
  %3: f32[2] = sin(%2)
  return %1
})");
  EXPECT_EQ(text_of(eliminate_dead_code(graph)), R"(graph @g(%a: f32[2], %unread: f32[2]) -> (f32[2]) {state=1} {
  %0: f32[2] = neg(%a)
  %1: f32[2] = exp(%0)
  return %1
}
)");
}

TEST(DeadCode, AnOpStaysForOneOfItsResults) {
  const std::string text = R"(graph @g(%a: f32[4]) -> (f32[2]) {
  %0: f32[2], %1: f32[2] = split(%a) {dim=0, size=2}
  return %1
}
)";
  EXPECT_EQ(text_of(eliminate_dead_code(graph_of(text))), text);
}

// The second result goes, with it the operand %w, which is not split, and %y, which is.
TEST(DeadCode, LoopsLoseUnreadResultsThenUnreadOperands) {
  const Graph graph = graph_of(R"(graph @g(%x: f32[4], %y: f32[4], %w: f32[2], %v: f32[2]) -> (f32[2]) {
  %0: f32[2] = exp(%w)
  %1: f32[2], %2: f32[2] = accumulate(%y, %x, %0, %v) {microbatches=2, split=2} (%y: f32[2], %x: f32[2], %w: f32[2], %v: f32[2]) -> (f32[2], f32[2]) {
    %0: f32[2] = mul(%y, %w)
    %1: f32[2] = add(%x, %v)
    return %0, %1
  }
  return %2
})");
  EXPECT_EQ(text_of(eliminate_dead_code(graph)), R"(graph @g(%x: f32[4], %y: f32[4], %w: f32[2], %v: f32[2]) -> (f32[2]) {
  %0: f32[2] = accumulate(%x, %v) {microbatches=2, split=1} (%x: f32[2], %v: f32[2]) -> (f32[2]) {
    %0: f32[2] = add(%x, %v)
    return %0
  }
  return %0
}
)");
}

TEST(DeadCode, AnUnreadLoopGoes) {
  const Graph graph = graph_of(R"(graph @g(%x: f32[4]) -> (f32[4]) {
  %0: f32[2] = accumulate(%x) {microbatches=2, split=1} (%x: f32[2]) -> (f32[2]) {
    return %x
  }
  return %x
})");
  EXPECT_EQ(text_of(eliminate_dead_code(graph)), "graph @g(%x: f32[4]) -> (f32[4]) {\n  return %x\n}\n");
}

}  // namespace
}  // namespace penstock
