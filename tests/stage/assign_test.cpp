#include <gtest/gtest.h>

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

TEST(AssignStages, AStepNeedsOneLoop) {
  EXPECT_NE(message_of([] {
              assign_stages(parse_graph("penstock graph 1\ngraph @g(%x: f32[2]) -> (f32[2]) { return %x }\n"));
            }).find("graph @g has 0 loops"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock
