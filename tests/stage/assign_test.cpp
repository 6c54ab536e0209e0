// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "base/text.h"
#include "stage/stages.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::message_of;
using test::step_with;

std::vector<std::string> stages_of_ops(const StagedStep& staged) {
  std::vector<std::string> out;
  for (const Op& op : staged.step.ops[0].body->ops) out.push_back(op.name + ":" + op.stage);
  return out;
}

using Strings = std::vector<std::string>;

TEST(AssignStages, WithoutMarksThereIsOneStage) {
  const StagedStep staged =
      assign_stages(step_with("%0: f32[2,3] = mul(%x, %w) %1: f32[] = sum(%0) {dim=[0, 1], keepdim=false} return %1\n"));
  EXPECT_EQ(staged.stages, Strings{"0"});
  EXPECT_EQ(stages_of_ops(staged), (Strings{"mul:0", "sum:0"}));
}

TEST(AssignStages, UnmarkedOpsFollowTheirLatestOperandElseTheirEarliestUser) {
  const StagedStep staged =
      assign_stages(step_with("%0: f32[2,3] = neg(%x)"  // only "b" reads it
                              "%1: f32[2,3] = mul(%x, %w) {stage=\"a\"}"
                              "%2: f32[2,3] = exp(%1)"  // of "a"
                              "%3: f32[2,3] = add(%2, %0) {stage=\"b\"}"
                              "%4: f32[2,3] = add(%3, %1)"  // of "a" and "b": the latest
                              "%5: f32[] = sum(%4) {dim=[0, 1], keepdim=false} return %5\n"));
  EXPECT_EQ(staged.stages, (Strings{"a", "b"}));
  EXPECT_EQ(stages_of_ops(staged), (Strings{"neg:b", "mul:a", "exp:a", "add:b", "add:b", "sum:b"}));
}

TEST(AssignStages, BoundariesEndStagesAndVanish) {
  const StagedStep staged = assign_stages(
      step_with("%0: f32[2,3] = neg(%x) %1: f32[2,3] = stage_boundary(%0) %2: f32[2,3] = mul(%1, %w) %3: f32[2,3] = stage_boundary(%2)"
                "%4: f32[] = sum(%3) {dim=[0, 1], keepdim=false} return %4\n"));
  EXPECT_EQ(staged.stages, (Strings{"0", "1", "2"}));
  EXPECT_EQ(stages_of_ops(staged), (Strings{"neg:0", "mul:1", "sum:2"}));
}

TEST(AssignStages, BackwardOpsFollowTheirForwardOp) {
  const StagedStep staged = assign_stages(
      step_with("%0: f32[2,3] = mul(%x, %w) {stage=\"a\", sequence=7} %1: f32[2,3] = exp(%0) {stage=\"b\", sequence=8}"
                "%2: f32[2,3] = mul(%1, %x) {phase=\"backward\", sequence=7} %3: f32[] = sum(%2) {dim=[0, 1], keepdim=false} return %3\n"));
  EXPECT_EQ(stages_of_ops(staged), (Strings{"mul:a", "exp:b", "mul:a", "sum:a"}));
}

TEST(AssignStages, AnOpBetweenParallelBranchesNeedsAMark) {
  EXPECT_EQ(message_of([] {
              assign_stages(
                  step_with("%0: f32[2,3] = neg(%x) {stage=\"left\"} %1: f32[2,3] = exp(%x) {stage=\"right\"}"
                            "%2: f32[2,3] = add(%0, %1) {origin=\"join\"} %3: f32[] = sum(%2) {dim=[0, 1], keepdim=false} return %3\n"));
            }),
            "no stage can be inferred for add(f32[2,3], f32[2,3]) of \"join\"\n"
            "  candidates: \"left\", \"right\", and none of them is after all others\n"
            "  hint: mark it: Stage s(\"right\"); around the code that makes it, or give it a stage of its own");
}

TEST(AssignStages, StagesThatNeedEachOtherAreAnError) {
  EXPECT_EQ(message_of([] {
              assign_stages(step_with(
                  "%0: f32[2,3] = neg(%x) {stage=\"a\"} %1: f32[2,3] = exp(%0) {stage=\"b\"} %2: f32[2,3] = add(%1, %0) {stage=\"a\"}"
                  "%3: f32[] = sum(%2) {dim=[0, 1], keepdim=false} return %3\n"));
            }),
            "stages \"a\" and \"b\" each need the other's results\n"
            "  a stage runs as a whole: what it reads must come from earlier stages\n"
            "  hint: give the ops between them a stage of their own, or mark both parts as one stage");
}

TEST(AssignStages, ABoundaryInsideAScopeIsAnError) {
  EXPECT_NE(message_of([] {
              assign_stages(
                  step_with("%0: f32[2,3] = stage_boundary(%x) {stage=\"a\"} %1: f32[] = sum(%0) {dim=[0, 1], keepdim=false} return %1\n"));
            }).find("stage_boundary inside Stage scope \"a\""),
            std::string::npos);
}

// Its ops by name, with their stages.
std::string assigned(const std::string& body) {
  return join(stages_of_ops(assign_stages(step_with(body + " return %9\n"))), " ");
}
// The last op of a body whose other ops make %8.
const std::string kLoss = "%9: f32[] = sum(%8) {dim=[0, 1], keepdim=false}";

// What a mark or a constant is made of does not belong to the boundary; constants belong to nobody.
TEST(AssignStages, ABoundaryTakesItsSliceUpToMarksAndConstants) {
  EXPECT_EQ(assigned("%0: f32[2,3] = full() {dtype=f32, fill_value=2.0, size=[2, 3], stage=\"z\"} %1: f32[2,3] = exp(%x)"
                     "%2: f32[2,3] = neg(%1) {stage=\"m\"} %3: f32[2,3] = add(%2, %0) %4: f32[2,3] = stage_boundary(%3)"
                     "%8: f32[2,3] = mul(%4, %0)" +
                     kLoss),
            "full: exp:m neg:m add:0 mul:1 sum:1");
}

// Stage 1 begins with the boundary's result, so "m" comes after it, and it after stage 0.
TEST(AssignStages, BoundariesOrderStages) {
  const StagedStep staged = assign_stages(
      step_with("%0: f32[2,3] = neg(%x) %1: f32[2,3] = stage_boundary(%0) %2: f32[2,3] = exp(%1) {stage=\"m\"} %3: f32[2,3] = add(%2, %1)"
                "%4: f32[2,3] = sub(%0, %1) %5: f32[2,3] = add(%3, %4) %6: f32[] = sum(%5) {dim=[0, 1], keepdim=false} return %6\n"));
  EXPECT_EQ(staged.stages, (Strings{"0", "1", "m"}));
  EXPECT_EQ(stages_of_ops(staged), (Strings{"neg:0", "exp:m", "add:m", "sub:1", "add:m", "sum:m"}));
}

TEST(AssignStages, ALoopResultBehindABoundaryIsWhatItPasses) {
  const StagedStep staged =
      assign_stages(step_with("%0: f32[] = sum(%x) {dim=[0, 1], keepdim=false} %1: f32[] = stage_boundary(%0) return %1\n"));
  const Graph& body = *staged.step.ops[0].body;
  EXPECT_EQ(body.outputs, body.ops[0].results);
}

TEST(AssignStages, OrderIsSeenThroughStagesBetween) {
  EXPECT_EQ(assigned("%0: f32[2,3] = neg(%x) {stage=\"a\"} %1: f32[2,3] = exp(%0) {stage=\"b\"} %2: f32[2,3] = exp(%1) {stage=\"c\"}"
                     "%8: f32[2,3] = add(%0, %2)" +
                     kLoss),
            "neg:a exp:b exp:c add:c sum:c");
}

// By forward users alone: a backward op of an unrelated stage says nothing.
TEST(AssignStages, TheEarliestUserIsAForwardOp) {
  EXPECT_EQ(assigned("%0: f32[2,3] = neg(%x) %1: f32[2,3] = add(%0, %x) {stage=\"a\"} %8: f32[2,3] = add(%1, %0) {stage=\"b\"}"
                     "%2: f32[2,3] = exp(%0) {stage=\"c\", phase=\"backward\"}" +
                     kLoss),
            "neg:a add:a add:b exp:c sum:b");
}

// Without a number, or with that of a constant: before all stages it reads from.
TEST(AssignStages, ABackwardOpWithoutAForwardOpComesFirst) {
  EXPECT_EQ(assigned("%0: f32[2,3] = full() {dtype=f32, fill_value=2.0, size=[2, 3], sequence=3} %1: f32[2,3] = mul(%x, %0) {stage=\"a\"}"
                     "%2: f32[2,3] = exp(%1) {stage=\"b\"} %3: f32[2,3] = mul(%1, %x) {phase=\"backward\"}"
                     "%4: f32[2,3] = exp(%1) {phase=\"backward\", sequence=3} %5: f32[2,3] = neg(%2) {phase=\"backward\"} %8: f32[2,3] = "
                     "add_n(%2, %3, %4) {phase=\"backward\"}" +
                     kLoss),
            "full: mul:a exp:b mul:a exp:a neg:b add_n:a sum:a");
}

// One tensor is sent then, and not each cotangent; those of several stages are added where the value was made.
TEST(AssignStages, ASumOfCotangentsLiesWhereAllOfThemArise) {
  for (const auto& [other, stage] : {std::pair{"%2", "b"}, {"%3", "a"}})
    EXPECT_EQ(assigned(concat("%0: f32[2,3] = neg(%x) {stage=\"a\", sequence=3} %1: f32[2,3] = exp(%0) {stage=\"b\"}"
                              "%2: f32[2,3] = neg(%1) {stage=\"b\"} %3: f32[2,3] = neg(%2) {stage=\"c\"}"
                              "%4: f32[2,3] = add_n(%1, ",
                              other, ") {phase=\"backward\", sequence=3} %8: f32[2,3] = neg(%4) {stage=\"c\"}", kLoss)),
              concat("neg:a exp:b neg:b neg:c add_n:", stage, " neg:c sum:c"));
}

TEST(AssignStages, AJoinThatIsOnlyALoopResultHasNoStage) {
  EXPECT_EQ(assigned("%0: f32[] = sum(%x) {dim=[0, 1], keepdim=false, stage=\"a\"} %1: f32[] = exp(%0) {stage=\"b\"}"
                     "%9: f32[] = add_n(%0, %1) {phase=\"backward\"}"),
            "sum:a exp:b add_n:");
}

TEST(AssignStages, AStepHasNotTwoLoops) {
  const std::string loop =
      ": f32[] = accumulate(%x) {microbatches=2, split=1} (%x: f32[2,3]) -> (f32[]) {\n"
      "    %0: f32[] = sum(%x) {dim=[0, 1], keepdim=false}\n    return %0\n  }\n";
  EXPECT_EQ(message_of([&] {
              assign_stages(parse_graph("penstock graph 1\ngraph @two(%x: f32[4,3]) -> (f32[], f32[]) {\n  %0" + loop + "  %1" + loop +
                                        "  return %0, %1\n}\n"));
            }),
            "graph @two has 2 loops\n"
            "  a step has one `accumulate`: the loop over its micro-batches\n"
            "  hint: call accumulate(...) once in the traced step; other work stands before or after it");
}

TEST(AssignStages, AStepNeedsOneLoop) {
  EXPECT_NE(message_of([] {
              assign_stages(parse_graph("penstock graph 1\ngraph @g(%x: f32[2]) -> (f32[2]) { return %x }\n"));
            }).find("graph @g has 0 loops"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock
