// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

// Two small sums of stage a go as one. The large one, the one of stage b and what is computed behind the loop stay by themselves.
TEST(JoinSums, SmallOnesOfAStageGoAsOne) {
  const Graph graph = graph_of(R"(graph @step(%x: f32[4]) -> (f32[2,2], f32[], f32[20000], f32[4], f32[]) {
  %0: f32[2,2], %1: f32[], %2: f32[20000], %3: f32[4] = accumulate(%x) {microbatches=2, split=1} (%x: f32[2]) -> (f32[2,2], f32[], f32[20000], f32[4]) {
    %0: f32[2,2] = expand(%x) {size=[2, 2], stage="a", sequence=0}
    %1: f32[] = sum(%x) {dim=[0], keepdim=false, stage="a", sequence=1}
    %2: f32[20000] = expand(%1) {size=[20000], stage="a", sequence=2}
    %3: f32[4] = expand(%1) {size=[4], stage="b", sequence=3}
    return %0, %1, %2, %3
  }
  %4: f32[2,2] = all_reduce(%0) {axis="tensor", size=2}
  %5: f32[20000] = all_reduce(%2) {axis="tensor", size=2}
  %6: f32[4] = all_reduce(%3) {axis="tensor", size=2}
  %7: f32[] = sum(%6) {dim=[0], keepdim=false, sequence=5}
  %8: f32[] = all_reduce(%1) {axis="tensor", size=2}
  %9: f32[] = all_reduce(%7) {axis="tensor", size=2}
  return %4, %8, %5, %6, %9
})");
  const std::string text = text_of(join_sums(graph));
  EXPECT_EQ(text.substr(text.find("  }\n")), R"(  }
  %4: f32[4] = reshape(%0) {shape=[4]}
  %5: f32[1] = reshape(%1) {shape=[1]}
  %6: f32[5] = cat(%4, %5) {dim=0}
  %7: f32[5] = all_reduce(%6) {axis="tensor", size=2}
  %8: f32[4] = slice(%7) {dim=0, end=4, start=0, step=1}
  %9: f32[2,2] = reshape(%8) {shape=[2, 2]}
  %10: f32[1] = slice(%7) {dim=0, end=5, start=4, step=1}
  %11: f32[] = reshape(%10) {shape=[]}
  %12: f32[20000] = all_reduce(%2) {axis="tensor", size=2}
  %13: f32[4] = all_reduce(%3) {axis="tensor", size=2}
  %14: f32[] = sum(%13) {dim=[0], keepdim=false, sequence=5}
  %15: f32[] = all_reduce(%14) {axis="tensor", size=2}
  return %9, %11, %12, %13, %15
}
)");
}

// One by itself stays, and so does one of another axis.
TEST(JoinSums, OneStaysAsItIs) {
  const std::string text = R"(graph @step(%x: f32[4]) -> (f32[], f32[]) {
  %0: f32[], %1: f32[] = accumulate(%x) {microbatches=2, split=1} (%x: f32[2]) -> (f32[], f32[]) {
    %0: f32[] = sum(%x) {dim=[0], keepdim=false, stage="a", sequence=0}
    %1: f32[] = exp(%0) {stage="a", sequence=1}
    return %0, %1
  }
  %2: f32[] = all_reduce(%0) {axis="tensor", size=2}
  %3: f32[] = all_reduce(%1) {axis="context", size=2}
  return %2, %3
}
)";
  EXPECT_EQ(text_of(join_sums(graph_of(text))), text);
}

}  // namespace
}  // namespace penstock
