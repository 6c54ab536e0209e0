// SPDX-License-Identifier: Apache-2.0
// Consecutive steps as one timeline.
#include "profile/recorded_batches.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

Timeline step(double makespan) {
  Timeline timeline{
      .title = "one", .devices = {"device 0"}, .tasks = {"f"}, .activities = {}, .memory = {{{0, {1}}}}, .makespan = makespan};
  timeline.activities = {{.begin = 1, .end = 2, .task = 0}, {.begin = 2, .end = 3, .task = 0, .cause = 0}};
  return timeline;
}

TEST(RecordedBatches, StepsFollowOnEachOther) {
  const Timeline both = joined({step(4), step(5)}, "both");
  EXPECT_EQ(both.title, "both");
  EXPECT_EQ(both.makespan, 9);
  ASSERT_EQ(both.activities.size(), 4U);
  EXPECT_EQ(both.activities[3].begin, 6);
  EXPECT_EQ(both.activities[3].end, 7);
  EXPECT_EQ(both.activities[3].cause, 2);
  EXPECT_EQ(both.activities[3].task, 1);
  EXPECT_EQ(both.activities[2].cause, 1);  // the step before had ended
  ASSERT_EQ(both.memory[0].size(), 2U);
  EXPECT_EQ(both.memory[0][1].time, 4);
}

}  // namespace
}  // namespace penstock
