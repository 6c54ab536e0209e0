// SPDX-License-Identifier: Apache-2.0
// Tables that are valid, and each mistake with its whole message.
#include <gtest/gtest.h>

#include "base/text.h"
#include "penstock/schedule.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

std::string verdict(const std::string& csv, const StageShape& shape, int microbatches = -1) {
  return message_of([&] { validate(parse_schedule(csv, "plan.csv"), shape, microbatches); });
}

TEST(Validate, AcceptsWhatADesignAsksFor) {
  EXPECT_EQ(verdict("0F0,1F0,1B0,0B0\n", chain(2)), "no error");                           // two stages on one actor
  EXPECT_EQ(verdict("0F0,0F1,0I0,0W0,0B1\n1F0,1F1,1B0,1I1,1W1\n", chain(2)), "no error");  // whole and split backward mixed
}

// Linear in actions, also where there are as many stages as that.
TEST(Validate, AMillionActors) {
  Schedule schedule = make_schedule("1f1b", {.actors = 1'000'000, .microbatches = 1});
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    const auto stage = static_cast<std::int32_t>(a);
    schedule.actors[a].insert(schedule.actors[a].begin(), {stage, Kind::UNSHARD});
    schedule.actors[a].push_back({stage, Kind::U});
  }
  EXPECT_EQ(message_of([&] { validate(schedule, chain(1'000'000)); }), "no error");
}

// Two replicas in opposite directions: micro-batch 0 goes down, micro-batch 1 up.
TEST(Validate, AcceptsReplicas) {
  EXPECT_EQ(verdict("0F0,1F1,1B1,0B0\n0F1,1F0,1B0,0B1\n", chain(2), 2), "no error");
}

TEST(Validate, AcceptsWeightGradientsElsewhere) {
  EXPECT_EQ(verdict("0F0,0I0,1W0\n1F0,1I0,0W0\n", chain(2)), "no error");
}

TEST(Validate, AcceptsStagesWithoutBackwardOrParameters) {
  StageShape shape = chain(3);
  shape.has_backward[0] = false;
  shape.has_parameters[1] = false;
  EXPECT_EQ(verdict("0F0\n1F0,1I0\n2F0,2I0,2W0\n", shape), "no error");
  EXPECT_EQ(verdict("0F0\n1F0,1I0,1W0\n2F0,2B0\n", shape), "no error");
  EXPECT_EQ(verdict("0F0\n1F0\n", chain(2, true)), "no error");
}

TEST(Validate, AcceptsSeveralMicrobatchesAtOnceAndFusedPairs) {
  EXPECT_EQ(verdict("0x2F0,0B0,0B1\n1F0,(1F1;1B0)OVERLAP_F_B,1B1\n", chain(2)), "no error");
}

TEST(Validate, AcceptsActionsThatNeedNothingElse) {
  EXPECT_EQ(verdict("0UNSHARD,0F0,0F1,0OFFLOAD0,0RELOAD0,0RESHARD,0UNSHARD,0B0,0R1,0I1,0RESHARD,0W1,0REDUCE_GRAD,0U\n", chain(1)),
            "no error");
  EXPECT_EQ(verdict("0x2F0,0x2R0,0B0,0REDUCE_GRAD,0B1,0REDUCE_GRAD\n", chain(1)), "no error");
  EXPECT_EQ(verdict("0F0,0x2OFFLOAD0,0F1,0RELOAD0,0B0,0RELOAD1,0B1\n", chain(1)),
            "plan.csv:1:2: 0x2OFFLOAD0 can never run (actor 0)\n"
            "  cycle: 0x2OFFLOAD0 needs 0F1; actor 0 runs 0F1 after 0x2OFFLOAD0\n"
            "  hint: move 0F1 (column 3) before column 2");
}

// Branches 0 and 1 join in 2: neither waits for the other, in a chain they would.
TEST(Validate, KnowsBranches) {
  const StageShape branches{.predecessors = {{}, {}, {0, 1}}, .has_backward = {true, true, true}, .has_parameters = {true, true, true}};
  const std::string csv = "0F0,0B0\n1F0,1B0\n2F0,2B0\n", late = "1F0,0F0,0B0,1B0\n2F0,2B0\n";
  EXPECT_EQ(verdict(csv, branches), "no error");
  EXPECT_EQ(verdict(late, branches), "no error");
  EXPECT_NE(verdict(late, chain(3)), "no error");
}

TEST(Validate, NamesTheCircleAcrossActors) {
  const std::string first = "0F0,0F1,0F2,0F3,0F4,0B0,0B1,0B2,0B3,0B4\n1F0,1F1,1F2,1F3,1F4,1B0,1B1,1B2,1B3,1B4\n";
  const std::string last = "3F0,3F1,3F2,3F3,3B0,3F4,3B1,3B2,3B3,3B4\n";
  EXPECT_EQ(verdict(first + "2F0,2F1,2F2,2F3,2B0,,2F4,,2B1,2B2,2B3,2B4\n" + last, chain(4)), "no error");
  EXPECT_EQ(verdict(first + "2F0,2F1,2F2,2F3,2B0,,2B1,,2F4,2B2,2B3,2B4\n" + last, chain(4)),
            "plan.csv:3:7: 2B1 can never run (actor 2)\n"
            "  cycle: 2B1 needs 3B1; actor 3 runs 3B1 after 3F4; 3F4 needs 2F4; actor 2 runs 2F4 after 2B1\n"
            "  hint: move 2F4 (column 9) before column 7, or 3F4 after 3B1");
}

TEST(Validate, NamesTheCircleOnOneActor) {
  EXPECT_EQ(verdict("0F0,0B1,0F1,0B0\n", chain(1)),
            "plan.csv:1:2: 0B1 can never run (actor 0)\n"
            "  cycle: 0B1 needs 0F1; actor 0 runs 0F1 after 0B1\n"
            "  hint: move 0F1 (column 3) before column 2");
}

// The work that is needed may itself be stuck: the circle goes through it, and only through what is in the circle.
TEST(Validate, FollowsTheCircleThroughStuckWork) {
  EXPECT_EQ(verdict("0F0,0B0\n1B0,1F0\n2F0,2B0\n", chain(3)),
            "plan.csv:2:1: 1B0 can never run (actor 1)\n"
            "  cycle: 1B0 needs 1F0; actor 1 runs 1F0 after 1B0\n"
            "  hint: move 1F0 (column 2) before column 1");
  EXPECT_EQ(verdict("2F0,0F0\n1F0\n", chain(3, true)),
            "plan.csv:1:1: 2F0 can never run (actor 0)\n"
            "  cycle: 2F0 needs 1F0; 1F0 needs 0F0; actor 0 runs 0F0 after 2F0\n"
            "  hint: move 0F0 (column 2) before column 1");
}

TEST(Validate, ShortensLongCircles) {
  std::string csv;
  const int actors = 20;
  for (int i = 0; i < actors; ++i) csv += "1F" + std::to_string(i) + ",0F" + std::to_string((i + actors - 1) % actors) + "\n";
  EXPECT_EQ(
      verdict(csv, chain(2, true)),
      "plan.csv:1:1: 1F0 can never run (actor 0)\n"
      "  cycle: 1F0 needs 0F0; actor 1 runs 0F0 after 1F1; 1F1 needs 0F1; actor 2 runs 0F1 after 1F2; 1F2 needs 0F2; actor 3 runs 0F2 "
      "after 1F3; ... 28 more ...; 1F17 needs 0F17; actor 18 runs 0F17 after 1F18; 1F18 needs 0F18; actor 19 runs 0F18 after 1F19; 1F19 "
      "needs 0F19; actor 0 runs 0F19 after 1F0\n"
      "  hint: move 0F19 (column 2) before column 1, or 1F1 after 0F0");
}

TEST(Validate, NamesMissingWork) {
  EXPECT_EQ(verdict("0F0,0F1,0B0,0B1\n1F0,1B0,1B1\n", chain(2)),
            "plan.csv:2:3: 1F1 is missing before 1B1\n"
            "  stage 1 must run forward once for each of 2 micro-batches; the table has 1 such forward\n"
            "  plan.csv:1:2: 0F1 names the last micro-batch\n"
            "  hint: add 1F1, or give the model as many stages and micro-batches as the table has");
  EXPECT_EQ(verdict("0F0\n1F0,1B0\n", chain(2)),
            "plan.csv:1:1: 0F0 has no backward\n  0B0 or 0I0 is missing\n  hint: add it to row 1, where 0F0 stands");
  EXPECT_EQ(verdict("0F0,0W0\n", chain(1)),
            "plan.csv:1:2: 0W0 has no input gradient before it\n  0I0 is missing\n  hint: add it to row 1, where 0F0 stands");
  EXPECT_EQ(verdict("0F0,0I0\n", chain(1)),
            "plan.csv:1:2: 0I0 has no weight gradient after it\n  0W0 is missing\n  hint: add 0W0 to any row, or write 0B0 for both");
}

TEST(Validate, NamesATableForAnotherModel) {
  const Schedule two = make_schedule("1f1b", {.actors = 2, .microbatches = 2});
  EXPECT_EQ(message_of([&] { validate(two, chain(1)); }),
            "1f1b:2:1: 1F0 names an unknown stage\n"
            "  the model has 1 stage, only 0; the table names 2\n"
            "  hint: use a table made for this number of stages, or cut the model into as many");
  EXPECT_EQ(message_of([&] { validate(two, chain(3)); }),
            "1f1b:2:1: 2F0 to 2F1 are missing near 1F0\n"
            "  stage 2 must run forward once for each of 2 micro-batches; the table has 0 such forwards\n"
            "  1f1b:1:2: 0F1 names the last micro-batch\n"
            "  hint: add 2F0 to 2F1, or give the model as many stages and micro-batches as the table has");
  EXPECT_EQ(message_of([&] { validate(two, chain(2), 1); }),
            "1f1b:1:2: 0F1 names an unknown micro-batch\n"
            "  a step has 1 micro-batch, only 0\n"
            "  hint: change the number of micro-batches, or the table");
  EXPECT_EQ(message_of([&] { validate(two, chain(2), 4); }),
            "1f1b:1:2: 0F2 to 0F3 are missing near 0F1\n"
            "  stage 0 must run forward once for each of 4 micro-batches; the table has 2 such forwards\n"
            "  hint: add 0F2 to 0F3, or give the model as many stages and micro-batches as the table has");
  EXPECT_EQ(message_of([&] { validate(two, chain(2, true)); }),
            "1f1b:1:3: 0B0 is a backward of a stage without\n"
            "  stage 0 only runs forward\n"
            "  hint: leave it out, or use a table made with --forward-only");
}

// A number that no table can fill is refused before anything is sized by it.
TEST(Validate, RefusesHugeNumbers) {
  EXPECT_EQ(verdict("0F0,0F1999999999\n", chain(1, true)),
            "plan.csv:1:2: 0F1999999999 names micro-batch 1999999999 of a table with 2 forwards\n"
            "  micro-batches are numbered from 0 without gaps");
  EXPECT_EQ(verdict("0x2000000000F0\n", chain(1, true)),
            "plan.csv: 1 stage x 2000000000 micro-batches are too many\n  the product may be up to 134217728");
}

TEST(Validate, NamesDoubledWork) {
  EXPECT_EQ(verdict("0F0,,0F0,0B0\n", chain(1)),
            "plan.csv:1:3: 0F0 stands twice\n"
            "  0F0 stands at plan.csv:1:1\n"
            "  each stage does F, and B or I and W, once per micro-batch, R or OFFLOAD and RELOAD at most once\n"
            "  hint: remove one of them");
  EXPECT_NE(verdict("0F0,0B0,0I0\n", chain(1)).find("plan.csv:1:3: 0I0 repeats work of 0B0\n"), std::string::npos);
  EXPECT_NE(verdict("0F0,0I0,0B0\n", chain(1)).find("plan.csv:1:3: 0B0 repeats work of 0I0\n"), std::string::npos);
  EXPECT_NE(verdict("0F0,0B0,0W0\n", chain(1)).find("plan.csv:1:3: 0W0 repeats work of 0B0\n"), std::string::npos);
  EXPECT_NE(verdict("0F0,0x2F0,0B0,0B1\n", chain(1)).find("plan.csv:1:2: 0x2F0 repeats work of 0F0\n"), std::string::npos);
}

TEST(Validate, KeepsBackwardWithItsForward) {
  EXPECT_EQ(verdict("0F0,1F0,1B0\n0B0\n", chain(2)),
            "plan.csv:2:1: 0B0 runs on actor 1, its forward on actor 0\n"
            "  0F0 stands at plan.csv:1:1\n"
            "  B and R run where their forward left its residuals, and I with an R or OFFLOAD; W, and I without, may run elsewhere\n"
            "  hint: move 0B0 to row 1");
  EXPECT_NE(verdict("0F0,0B0\n0R0\n", chain(1)).find("plan.csv:2:1: 0R0 runs on actor 1, its forward on actor 0"), std::string::npos);
}

TEST(Validate, LetsHalvesOfBackwardsRunElsewhere) {
  EXPECT_EQ(verdict("0F0,1F0,1I0,1W0\n0I0,0W0\n", chain(2)), "no error");
  EXPECT_EQ(verdict("0F0,1F0,1I0\n0I0,1W0\n0W0\n", chain(2)), "no error");
  for (const char* first : {"0F0,0R0", "0F0,0OFFLOAD0,0RELOAD0"})
    EXPECT_EQ(verdict(concat(first, "\n0I0,0W0\n"), chain(1)).substr(0, 72),
              "plan.csv:2:1: 0I0 runs on actor 1, its forward on actor 0\n  0F0 stands a");
  EXPECT_NE(verdict("0F0,1F0,0W0\n0I0,1I0,1W0\n", chain(2)).find("can never run"), std::string::npos);
}

TEST(Validate, KeepsResidualsBetweenForwardAndBackward) {
  EXPECT_EQ(verdict("0F0,,0B0,0R0\n", chain(1)),
            "plan.csv:1:3: 0B0 can never run (actor 0)\n"
            "  cycle: 0B0 needs 0R0; actor 0 runs 0R0 after 0B0\n"
            "  hint: move 0R0 (column 4) before column 3");
  EXPECT_NE(verdict("0R0,0F0,0B0\n", chain(1)).find("cycle: 0R0 needs 0F0"), std::string::npos);
  EXPECT_NE(verdict("0F0,0RELOAD0,0OFFLOAD0,0B0\n", chain(1)).find("cycle: 0RELOAD0 needs 0OFFLOAD0"), std::string::npos);
  EXPECT_NE(verdict("0F0,0OFFLOAD0,0I0,0RELOAD0,0W0\n", chain(1)).find("cycle: 0I0 needs 0RELOAD0"), std::string::npos);
  EXPECT_NE(verdict("0OFFLOAD0,0F0,0RELOAD0,0B0\n", chain(1)).find("cycle: 0OFFLOAD0 needs 0F0"), std::string::npos);
  EXPECT_NE(verdict("0F0,0R0,0R0,0B0\n", chain(1)).find("plan.csv:1:3: 0R0 stands twice"), std::string::npos);
  EXPECT_NE(verdict("0F0,0OFFLOAD0,0RELOAD0,0RELOAD0,0B0\n", chain(1)).find("plan.csv:1:4: 0RELOAD0 stands twice"), std::string::npos);
  EXPECT_EQ(verdict("0F0,0R0\n", chain(1, true)),
            "plan.csv:1:2: 0R0 prepares a backward of a stage without\n"
            "  stage 0 only runs forward\n"
            "  hint: leave it out, or use a table made with --forward-only");
  EXPECT_NE(verdict("0F0,0F1,0B0,0B1,0R2\n", chain(1), 2).find("plan.csv:1:5: 0R2 names an unknown micro-batch"), std::string::npos);
}

TEST(Validate, BringsBackWhatWasOffloaded) {
  EXPECT_EQ(verdict("0F0,0OFFLOAD0,0B0\n", chain(1)),
            "plan.csv:1:2: 0OFFLOAD0 is never reloaded\n"
            "  0RELOAD0 is missing\n"
            "  hint: add it before the backward, or leave out 0OFFLOAD0");
  EXPECT_EQ(verdict("0F0,,0RELOAD0,0B0\n", chain(1)),
            "plan.csv:1:3: 0RELOAD0 was never offloaded\n"
            "  0OFFLOAD0 is missing\n"
            "  hint: add it after the forward, or leave out 0RELOAD0");
  EXPECT_EQ(verdict("0F0,0OFFLOAD0,0RELOAD0,0R0,0B0\n", chain(1)),
            "plan.csv:1:4: 0R0 computes again what 0RELOAD0 brings back\n"
            "  0OFFLOAD0 stands at plan.csv:1:2\n"
            "  hint: leave out one or the other");
  EXPECT_EQ(verdict("0F0,0RELOAD0,0B0\n0OFFLOAD0\n", chain(1)),
            "plan.csv:2:1: 0OFFLOAD0 runs on actor 1, its forward on actor 0\n"
            "  0F0 stands at plan.csv:1:1\n"
            "  they move what the forward left, where it left it\n"
            "  hint: move 0OFFLOAD0 to row 1");
}

TEST(Validate, NeedsParametersGathered) {
  EXPECT_EQ(verdict("0UNSHARD,0F0,0RESHARD,0B0\n", chain(1)),
            "plan.csv:1:4: 0B0 finds its parameters sharded\n"
            "  actor 0 gathers those of stage 0, but they are not there\n"
            "  hint: add 0UNSHARD before it");
  EXPECT_NE(verdict("0F0,0UNSHARD,0B0\n", chain(1)).find("plan.csv:1:1: 0F0 finds its parameters sharded"), std::string::npos);
  EXPECT_NE(verdict("0UNSHARD,0F0,0RESHARD,0R0,0B0\n", chain(1)).find("1:4: 0R0 finds its parameters sharded"), std::string::npos);
  EXPECT_EQ(verdict("0UNSHARD,0F0,0UNSHARD,0B0\n", chain(1)),
            "plan.csv:1:3: 0UNSHARD gathers what actor 0 still has\n  hint: leave it out");
  EXPECT_EQ(verdict("0F0,0RESHARD,0B0\n", chain(1)),
            "plan.csv:1:2: 0RESHARD drops what actor 0 has not gathered\n  no 0UNSHARD stands before it");
  EXPECT_EQ(verdict("0UNSHARD,0UNSHARD0,0F0,0B0\n", chain(1)),
            "plan.csv:1:2: 0UNSHARD0 names a micro-batch\n"
            "  parameters, and the sum of gradients, belong to a stage\n"
            "  hint: write 0UNSHARD");
}

TEST(Validate, ReducesAllGradients) {
  EXPECT_EQ(verdict("0F0,0I0,0REDUCE_GRAD,0W0\n", chain(1)),
            "plan.csv:1:3: 0REDUCE_GRAD has nothing to reduce\n  neither B nor W of stage 0 stands before it on actor 0");
  EXPECT_EQ(verdict("0F0,0B0,0REDUCE_GRAD,0REDUCE_GRAD\n", chain(1)),
            "plan.csv:1:4: 0REDUCE_GRAD has nothing to reduce\n"
            "  neither B nor W of stage 0 stands before it on actor 0, behind the last one");
  EXPECT_EQ(verdict("0F0,0F1,0B0,0REDUCE_GRAD,0B1\n", chain(1)),
            "plan.csv:1:5: 0B1: its gradient is never reduced\n"
            "  the last 0REDUCE_GRAD of actor 0 stands at plan.csv:1:4\n"
            "  hint: move it behind 0B1, or add one there");
  EXPECT_NE(verdict("0F0,0B0,0U,0REDUCE_GRAD\n", chain(1)).find("plan.csv:1:3: 0U is too early"), std::string::npos);
}

TEST(Validate, RefusesTablesWithoutForward) {
  EXPECT_EQ(verdict("0UNSHARD\n", chain(1)), "plan.csv:1:1: the table has no forward");
  EXPECT_EQ(message_of([] { validate({}, chain(1)); }), "schedule:1:1: the table has no forward");
}

// An order inside of a pair that cannot run is told so, not to move before its own column.
TEST(Validate, TurnsFusedPairsRound) {
  EXPECT_EQ(verdict("0F0,(0B1;0F1)OVERLAP_F_B,0B0\n", chain(1)),
            "plan.csv:1:2: 0B1 can never run (actor 0)\n"
            "  cycle: 0B1 needs 0F1; actor 0 runs 0F1 after 0B1\n"
            "  hint: write 0F1 before 0B1 in the fused pair of column 2");
  EXPECT_EQ(verdict("0F0,0F1,(0B0;0B1)OVERLAP_F_B\n1F0,(1B1;1F1)OVERLAP_F_B,1B0\n", chain(2)),
            "plan.csv:2:2: 1B1 can never run (actor 1)\n"
            "  cycle: 1B1 needs 1F1; actor 1 runs 1F1 after 1B1\n"
            "  hint: write 1F1 before 1B1 in the fused pair of column 2");
}

// A generated table's cells are those it is printed in: a fused pair is one.
TEST(Validate, CountsFusedPairsAsOneCell) {
  Schedule table = parse_schedule("0F0,(0F1;0B0)OVERLAP_F_B,0B1,0B1\n", "plan.csv");
  table.cells.clear();
  EXPECT_NE(message_of([&] { validate(table, chain(1)); }).find("plan.csv:1:4: 0B1 stands twice"), std::string::npos);
}

}  // namespace
}  // namespace penstock
