// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/text_graphs.h"
#include "transform/passes.h"

namespace penstock {
namespace {

using test::graph_of;
using test::text_of;

std::function<bool(const Op&)> of_stage(std::string stage) {
  return [=](const Op& op) { return op.stage == stage; };
}

// Stage a computes %2 from %x and the key; stage b reads it. Backward of a needs %0, %1 (dropout) and the view %2.
constexpr const char* kBody = R"(graph @body(%x: f32[2], %key: i64[], %c: f32[2]) -> (f32[1,2], f32[2]) {
  %0: f32[2] = sin(%x) {stage="a", sequence=0}
  %1: f32[2] = dropout(%0, %key) {p=0.5, stage="a", origin="h.0", sequence=1}
  %2: f32[1,2] = unsqueeze(%1) {dim=0, stage="a", sequence=2}
  %3: f32[2] = cos(%1) {stage="a", sequence=3}
  %4: f32[1,2] = exp(%2) {stage="b", sequence=4}
  %5: f32[1,2] = mul(%4, %4) {stage="b", phase="backward", sequence=4}
  %6: f32[2] = mul(%5, %2) {stage="a", phase="backward", sequence=2}
  %7: f32[2] = mul(%6, %0) {stage="a", phase="backward", sequence=1}
  return %4, %7
}
)";

// %3 is not needed, so it is not copied; %5 of stage b still reads the kept %4.
TEST(Recompute, BackwardReadsCopiesOfItsStage) {
  EXPECT_EQ(text_of(recompute(graph_of(kBody), of_stage("a"))), R"(graph @body(%x: f32[2], %key: i64[], %c: f32[2]) -> (f32[1,2], f32[2]) {
  %0: f32[2] = sin(%x) {stage="a", sequence=0}
  %1: f32[2] = dropout(%0, %key) {p=0.5, stage="a", origin="h.0", sequence=1}
  %2: f32[1,2] = unsqueeze(%1) {dim=0, stage="a", sequence=2}
  %3: f32[2] = cos(%1) {stage="a", sequence=3}
  %4: f32[1,2] = exp(%2) {stage="b", sequence=4}
  %5: f32[1,2] = mul(%4, %4) {stage="b", phase="backward", sequence=4}
  %6: f32[2] = sin(%x) {stage="a", phase="backward", sequence=0}
  %7: f32[2] = dropout(%6, %key) {p=0.5, stage="a", phase="backward", origin="h.0", sequence=1}
  %8: f32[1,2] = unsqueeze(%7) {dim=0, stage="a", phase="backward", sequence=2}
  %9: f32[2] = mul(%5, %8) {stage="a", phase="backward", sequence=2}
  %10: f32[2] = mul(%9, %6) {stage="a", phase="backward", sequence=1}
  return %4, %10
}
)");
}

TEST(Recompute, AStageReadsWhatEntersIt) {
  EXPECT_EQ(text_of(recompute(graph_of(kBody), of_stage("b"))), R"(graph @body(%x: f32[2], %key: i64[], %c: f32[2]) -> (f32[1,2], f32[2]) {
  %0: f32[2] = sin(%x) {stage="a", sequence=0}
  %1: f32[2] = dropout(%0, %key) {p=0.5, stage="a", origin="h.0", sequence=1}
  %2: f32[1,2] = unsqueeze(%1) {dim=0, stage="a", sequence=2}
  %3: f32[2] = cos(%1) {stage="a", sequence=3}
  %4: f32[1,2] = exp(%2) {stage="b", sequence=4}
  %5: f32[1,2] = exp(%2) {stage="b", phase="backward", sequence=4}
  %6: f32[1,2] = mul(%5, %5) {stage="b", phase="backward", sequence=4}
  %7: f32[2] = mul(%6, %2) {stage="a", phase="backward", sequence=2}
  %8: f32[2] = mul(%7, %0) {stage="a", phase="backward", sequence=1}
  return %4, %8
}
)");
}

TEST(Recompute, OfNoStageChangesNothing) {
  EXPECT_EQ(text_of(recompute(graph_of(kBody), [](const Op&) { return false; })), kBody);
}

// Two losses, one after the other's backward: a copy stands where it is first needed, after what it reads.
TEST(Recompute, CopiesStandBeforeTheirFirstReader) {
  const Graph graph = graph_of(R"(graph @body(%x: f32[]) -> (f32[], f32[]) {
  %0: f32[] = sin(%x) {stage="a"}
  %1: f32[] = cos(%0) {stage="a", phase="backward"}
  %2: f32[] = exp(%1) {stage="a"}
  %3: f32[] = mul(%2, %0) {stage="a", phase="backward"}
  return %1, %3
})");
  EXPECT_EQ(text_of(recompute(graph, of_stage("a"))), R"(graph @body(%x: f32[]) -> (f32[], f32[]) {
  %0: f32[] = sin(%x) {stage="a"}
  %1: f32[] = sin(%x) {stage="a", phase="backward"}
  %2: f32[] = cos(%1) {stage="a", phase="backward"}
  %3: f32[] = exp(%2) {stage="a"}
  %4: f32[] = exp(%2) {stage="a", phase="backward"}
  %5: f32[] = mul(%4, %1) {stage="a", phase="backward"}
  return %2, %5
}
)");
}

TEST(Recompute, ConstantsOfTheStageAreCopiedAndUnmarkedOnesRead) {
  const Graph graph = graph_of(R"(graph @body(%x: f32[]) -> (f32[]) {
  %0: f32[] = full() {value=1.0, stage="a"}
  %1: f32[] = full() {value=2.0}
  %2: f32[] = add(%0, %1) {stage="a"}
  %3: f32[] = mul(%x, %2) {stage="a", phase="backward"}
  return %3
})");
  EXPECT_EQ(text_of(recompute(graph, of_stage("a"))), R"(graph @body(%x: f32[]) -> (f32[]) {
  %0: f32[] = full() {value=1.0, stage="a"}
  %1: f32[] = full() {value=2.0}
  %2: f32[] = add(%0, %1) {stage="a"}
  %3: f32[] = full() {value=1.0, stage="a", phase="backward"}
  %4: f32[] = add(%3, %1) {stage="a", phase="backward"}
  %5: f32[] = mul(%x, %4) {stage="a", phase="backward"}
  return %5
}
)");
}

// A view of what is computed again is taken again of that, so that its storage is not kept either.
TEST(Recompute, ViewsFollowWhatTheyView) {
  EXPECT_EQ(text_of(recompute(graph_of(kBody), [](const Op& op) { return op.name == "dropout"; })),
            R"(graph @body(%x: f32[2], %key: i64[], %c: f32[2]) -> (f32[1,2], f32[2]) {
  %0: f32[2] = sin(%x) {stage="a", sequence=0}
  %1: f32[2] = dropout(%0, %key) {p=0.5, stage="a", origin="h.0", sequence=1}
  %2: f32[1,2] = unsqueeze(%1) {dim=0, stage="a", sequence=2}
  %3: f32[2] = cos(%1) {stage="a", sequence=3}
  %4: f32[1,2] = exp(%2) {stage="b", sequence=4}
  %5: f32[1,2] = mul(%4, %4) {stage="b", phase="backward", sequence=4}
  %6: f32[2] = dropout(%0, %key) {p=0.5, stage="a", phase="backward", origin="h.0", sequence=1}
  %7: f32[1,2] = unsqueeze(%6) {dim=0, stage="a", phase="backward", sequence=2}
  %8: f32[2] = mul(%5, %7) {stage="a", phase="backward", sequence=2}
  %9: f32[2] = mul(%8, %0) {stage="a", phase="backward", sequence=1}
  return %4, %9
}
)");
}

// The attribute says what is wanted, not what an op is: kernels and costs of tasks do not see it.
TEST(Recompute, LeavesNoAttribute) {
  Graph graph = graph_of(kBody);
  for (Op& op : graph.ops) op.attributes[kRecompute] = true;
  const Graph after = recompute(graph, [](const Op& op) { return op.attributes.contains(kRecompute); });
  for (const Op& op : after.ops) EXPECT_FALSE(op.attributes.contains(kRecompute)) << print(after);
}

}  // namespace
}  // namespace penstock
