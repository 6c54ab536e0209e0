// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

// The cast and the key leave; the op that reads the part stays.
TEST(Hoist, InvariantsLeaveTheLoop) {
  const Graph graph = graph_of(R"(graph @step(%x: bf16[4], %w: f32[2], %seed: i64[]) -> (bf16[2]) {
  %0: bf16[2] = accumulate(%x, %w, %seed) {microbatches=2, split=1} (%x: bf16[2], %w: f32[2], %seed: i64[]) -> (bf16[2]) {
    %0: bf16[2] = to(%w) {dtype=bf16, stage="a", sequence=0}
    %1: i64[] = random_key(%seed, %seed) {op=0, stage="a", sequence=1}
    %2: bf16[2] = mul(%x, %0) {stage="a", sequence=2}
    %3: bf16[2] = dropout(%2, %1) {p=0.5, stage="a", sequence=3}
    return %3
  }
  return %0
})");
  EXPECT_EQ(text_of(hoist_invariants(graph)), R"(graph @step(%x: bf16[4], %w: f32[2], %seed: i64[]) -> (bf16[2]) {
  %0: bf16[2] = to(%w) {dtype=bf16, stage="a"}
  %1: i64[] = random_key(%seed, %seed) {op=0, stage="a"}
  %2: bf16[2] = accumulate(%x, %w, %seed, %0, %1) {microbatches=2, split=1} (%x: bf16[2], %w: f32[2], %seed: i64[], %hoisted.3: bf16[2], %hoisted.4: i64[]) -> (bf16[2]) {
    %0: bf16[2] = mul(%x, %hoisted.3) {stage="a", sequence=2}
    %1: bf16[2] = dropout(%0, %hoisted.4) {p=0.5, stage="a", sequence=3}
    return %1
  }
  return %2
}
)");
}

// A view and a constant stay, and are done outside too where a hoisted op reads them. A chain leaves as one value.
TEST(Hoist, ViewsAndConstantsStay) {
  const Graph graph = graph_of(R"(graph @step(%x: f32[4,2], %w: f32[2]) -> (f32[2,2]) {
  %0: f32[2,2] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[2,2], %w: f32[2]) -> (f32[2,2]) {
    %0: f32[2] = full() {shape=[2], value=2.0}
    %1: f32[2,2] = expand(%w) {shape=[2, 2]}
    %2: f32[2,2] = expand(%0) {shape=[2, 2]}
    %3: f32[2,2] = mul(%1, %2)
    %4: f32[2,2] = exp(%3)
    %5: f32[2,2] = add(%4, %1)
    %6: f32[2,2] = add(%x, %1)
    %7: f32[2,2] = add(%6, %5)
    return %7
  }
  return %0
})");
  EXPECT_EQ(text_of(eliminate_dead_code(hoist_invariants(graph))), R"(graph @step(%x: f32[4,2], %w: f32[2]) -> (f32[2,2]) {
  %0: f32[2] = full() {shape=[2], value=2.0}
  %1: f32[2,2] = expand(%w) {shape=[2, 2]}
  %2: f32[2,2] = expand(%0) {shape=[2, 2]}
  %3: f32[2,2] = mul(%1, %2)
  %4: f32[2,2] = exp(%3)
  %5: f32[2,2] = add(%4, %1)
  %6: f32[2,2] = accumulate(%x, %w, %5) {microbatches=2, split=1} (%x: f32[2,2], %w: f32[2], %hoisted.2: f32[2,2]) -> (f32[2,2]) {
    %0: f32[2,2] = expand(%w) {shape=[2, 2]}
    %1: f32[2,2] = add(%x, %0)
    %2: f32[2,2] = add(%1, %hoisted.2)
    return %2
  }
  return %6
}
)");
}

// A loop's result that no micro-batch changes is a sum over them all the same, which devices can only add up of what tasks compute.
TEST(Hoist, AResultStaysInTheLoop) {
  const Graph graph = graph_of(R"(graph @step(%x: f32[4], %w: f32[]) -> (f32[]) {
  %0: f32[] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[2], %w: f32[]) -> (f32[]) {
    %0: f32[] = neg(%w)
    %1: f32[] = exp(%0)
    return %1
  }
  return %0
})");
  EXPECT_EQ(text_of(eliminate_dead_code(hoist_invariants(graph))), R"(graph @step(%x: f32[4], %w: f32[]) -> (f32[]) {
  %0: f32[] = neg(%w)
  %1: f32[] = accumulate(%0) {microbatches=2, split=0} (%hoisted.2: f32[]) -> (f32[]) {
    %0: f32[] = exp(%hoisted.2)
    return %0
  }
  return %1
}
)");
}

// The terms of a result are results of their stages' tasks, where these lie apart.
TEST(Hoist, TermsOfAResultStayInTheLoop) {
  const Graph graph = graph_of(R"(graph @step(%x: f32[4], %w: f32[2]) -> (f32[2]) {
  %0: f32[2] = accumulate(%x, %w) {microbatches=2, split=1} (%x: f32[2], %w: f32[2]) -> (f32[2]) {
    %0: f32[2] = neg(%w)
    %1: f32[2] = exp(%0)
    %2: f32[2] = add_n(%1, %x)
    return %2
  }
  return %0
})");
  EXPECT_EQ(text_of(eliminate_dead_code(hoist_invariants(graph))), R"(graph @step(%x: f32[4], %w: f32[2]) -> (f32[2]) {
  %0: f32[2] = neg(%w)
  %1: f32[2] = accumulate(%x, %0) {microbatches=2, split=1} (%x: f32[2], %hoisted.2: f32[2]) -> (f32[2]) {
    %0: f32[2] = exp(%hoisted.2)
    %1: f32[2] = add_n(%0, %x)
    return %1
  }
  return %1
}
)");
}

}  // namespace
}  // namespace penstock
