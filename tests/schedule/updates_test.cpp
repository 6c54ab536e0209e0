// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "penstock/schedule.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

TEST(Updates, StandBehindTheLastActionOfEachStage) {
  const Schedule table = with_updates(make_schedule("zb-h1", {.actors = 2, .microbatches = 2}));
  EXPECT_EQ(print(table), "0F0,0F1,0I0,0W0,0I1,0W1,0U\n1F0,1I0,1F1,1I1,1W0,1W1,1U\n");
  validate(table, chain(2));
  EXPECT_EQ(print(with_updates(table)), print(table));
}

TEST(Updates, StandBehindTheSumOfTheGradients) {
  const Schedule table = with_updates(make_schedule("zeropp", {.actors = 1, .microbatches = 2, .chunks = 2}));
  EXPECT_TRUE(print(table).ends_with("1REDUCE_GRAD,1U,0W0,0W1,0REDUCE_GRAD,0U\n")) << print(table);
  validate(table, chain(2));
}

// A pair runs as one: the updates of both its stages stand behind it.
TEST(Updates, StandBehindFusedPairs) {
  const Schedule table = with_updates(parse_schedule("0F0,1F0,(1B0;0B0)OVERLAP_F_B\n", "t.csv"));
  EXPECT_EQ(print(table), "0F0,1F0,(1B0;0B0)OVERLAP_F_B,1U,0U\n");
  validate(parse_schedule(print(table), "t.csv"), chain(2));
  EXPECT_EQ(print(with_updates(table)), print(table));
}

// A table made in C++ may end in the first of a pair; print() takes it for an action of its own, and so do updates.
TEST(Updates, StandBehindAPairWithoutASecond) {
  Schedule table = parse_schedule("0F0,0B0\n", "t.csv");
  table.actors[0].back().fused_with_next = true;
  EXPECT_EQ(print(with_updates(table)), "0F0,0B0,0U\n");
}

TEST(Updates, AreCheckedAgainstTheTable) {
  const auto message = [](const char* csv) { return message_of([&] { validate(parse_schedule(csv, "t.csv"), chain(2)); }); };
  EXPECT_EQ(message("0F0,0F1,0B0,0U,0B1\n1F0,1B0,1F1,1B1,1U\n"),
            "t.csv:1:4: 0U is too early: actor 0 goes on with stage 0 after it\n"
            "  a stage is updated once in a step, when its gradients are complete\n"
            "  hint: move it behind the stage's last action, or leave it out: what has no U is updated at the end");
  EXPECT_NE(message("0F0,0B0,0U,0U\n1F0,1B0\n").find("t.csv:1:3: 0U is too early"), std::string::npos);
  EXPECT_EQ(message("0F0,0B0,1U\n1F0,1B0\n"), "t.csv:1:3: 1U: actor 0 has nothing of stage 1 to update");
}

}  // namespace
}  // namespace penstock
