// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/text.h"
#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;

// The forward ops that are marked, by name; `loss`: the value of the body that it returns.
std::string marked(const std::string& body, int loss) {
  const Graph step =
      mark_cheap(graph_of(concat("graph @step(%q: f32[2,4,64,16], %k: f32[2,4,16,64], %w: f32[64,64], %key: i64[]) -> (f32[]) {\n"
                                 "  %0: f32[] = accumulate(%q, %k, %w, %key) {microbatches=2, split=2} "
                                 "(%q: f32[1,4,64,16], %k: f32[1,4,16,64], %w: f32[64,64], %key: i64[]) -> (f32[]) {\n",
                                 body, "    return %", loss, "\n  }\n  return %0\n}")));
  std::vector<std::string> out;
  for (const Op& op : step.ops[0].body->ops)
    if (op.attributes.contains(kRecompute)) out.push_back(op.name);
  return join(out, " ");
}

// Scores, softmax and dropout take 64 * 64 numbers a head, and what they are made of is there anyway: q and k are read by the backward. The
// product with as many columns as the model is wide costs more for a byte. The last sum has next to no result.
TEST(MarkCheap, TakesTheCoreOfAttention) {
  EXPECT_EQ(marked(R"(    %0: f32[1,4,64,64] = matmul(%q, %k) {stage="a", sequence=0}
    %1: f32[1,4,64,64] = softmax(%0) {dim=3, stage="a", sequence=1}
    %2: f32[1,4,64,64] = dropout(%1, %key) {p=0.5, stage="a", sequence=2}
    %3: f32[1,4,64,16] = matmul(%2, %q) {stage="a", sequence=3}
    %4: f32[64,64] = reshape(%3) {shape=[64, 64], stage="a", sequence=4}
    %5: f32[64,64] = mm(%4, %w) {stage="a", sequence=5}
    %6: f32[64,64] = mm(%5, %w) {stage="a", sequence=6}
    %7: f32[64,64] = mm(%6, %w) {stage="a", sequence=7}
    %8: f32[64,64] = mul(%7, %7) {stage="a", sequence=8}
    %9: f32[] = sum(%8) {dims=[0, 1], keepdim=false, stage="a", sequence=9}
    %10: f32[64,64] = mm(%7, %6) {stage="a", phase="backward", sequence=7}
    %11: f32[64,64] = mm(%10, %5) {stage="a", phase="backward", sequence=6}
    %12: f32[64,64] = mm(%11, %4) {stage="a", phase="backward", sequence=5}
    %13: f32[1,4,64,64] = mul(%1, %2) {stage="a", phase="backward", sequence=2}
    %14: f32[1,4,64,16] = matmul(%13, %q) {stage="a", phase="backward", sequence=0}
    %15: f32[1,4,16,64] = mul(%k, %k) {stage="a", phase="backward", sequence=0}
)",
                   9),
            "matmul softmax dropout mul");
}

// The sum of two products is read by the backward, and the products are not: kept in its place, they would take twice as much.
TEST(MarkCheap, KeepsWhatIsMadeOfMore) {
  EXPECT_EQ(marked(R"(    %0: f32[64,64] = reshape(%q) {shape=[64, 64], stage="a", sequence=0}
    %1: f32[64,64] = mm(%0, %w) {stage="a", sequence=1}
    %2: f32[64,64] = mm(%1, %w) {stage="a", sequence=2}
    %3: f32[64,64] = add(%1, %2) {stage="a", sequence=3}
    %4: f32[64,64] = relu(%3) {stage="a", sequence=4}
    %5: f32[] = sum(%4) {dims=[0, 1], keepdim=false, stage="a", sequence=5}
    %6: f32[64,64] = mul(%4, %3) {stage="a", phase="backward", sequence=4}
)",
                   5),
            "relu");
}

// What enters a stage is not kept there otherwise, so that its first op gains nothing; stage b does not find what stage a keeps.
TEST(MarkCheap, LooksAtEachStageByItself) {
  EXPECT_EQ(marked(R"(    %0: f32[1,4,64,16] = relu(%q) {stage="a", sequence=0}
    %1: f32[1,4,64,16] = relu(%0) {stage="b", sequence=1}
    %2: f32[64,64] = reshape(%1) {shape=[64, 64], stage="b", sequence=2}
    %3: f32[64,64] = mm(%2, %w) {stage="b", sequence=3}
    %4: f32[] = sum(%3) {dims=[0, 1], keepdim=false, stage="b", sequence=4}
    %5: f32[1,4,64,16] = mul(%1, %1) {stage="b", phase="backward", sequence=1}
    %6: f32[1,4,64,16] = mul(%5, %0) {stage="a", phase="backward", sequence=0}
)",
                   4),
            "");
}

}  // namespace
}  // namespace penstock
