// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_difference.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/timelines.h"

namespace penstock {
namespace {

// One forward of stage 0 and one backward of stage 1 on devices of their own, one after the other, and a transfer between them.
Timeline two_boxes(double forward, double backward) {
  Timeline out;
  out.title = "boxes";
  out.devices = {"device 0", "device 1"};
  out.makespan = forward + 0.001 + backward;
  out.activities = {{.end = forward, .device = 0, .action = true, .kind = Kind::F, .stage = 0, .microbatch = 0},
                    {.begin = forward, .end = forward + 0.001, .device = 0, .peer = 1, .lane = Lane::transfer, .stage = 0, .cause = 0},
                    {.begin = forward + 0.001,
                     .end = out.makespan,
                     .device = 1,
                     .action = true,
                     .kind = Kind::B,
                     .stage = 1,
                     .microbatch = 0,
                     .cause = 1}};
  return out;
}

TEST(TimelineDifference, TimesOfEachKindAndStage) {
  const TimelineDifference found = difference(two_boxes(0.004, 0.005), two_boxes(0.002, 0.007));
  ASSERT_EQ(found.kinds.size(), 3U);
  EXPECT_EQ(found.kinds[0].kind, "forward");
  EXPECT_EQ(found.kinds[0].stage, 0);
  EXPECT_NEAR(found.kinds[0].time.difference(), -0.002, 1e-12);
  EXPECT_EQ(found.kinds[1].kind, "backward");
  EXPECT_EQ(found.kinds[1].stage, 1);
  EXPECT_NEAR(found.kinds[1].time.difference(), 0.002, 1e-12);
  EXPECT_NEAR(found.makespan.difference(), 0, 1e-12);
  EXPECT_NEAR(found.bubble.first, 1 - 0.009 / 0.020, 1e-12);
  EXPECT_EQ(found.other_devices, "");
  EXPECT_TRUE(found.peaks.empty());
}

TEST(TimelineDifference, AsText) {
  EXPECT_EQ(difference_text(difference(two_boxes(0.004, 0.005), two_boxes(0.002, 0.005))),
            "A: boxes\nB: boxes\n\n"
            "             A       B   B - A     of A\n"
            "step     10 ms    8 ms   -2 ms  -20.0 %\n"
            "bubble  55.0 %  56.2 %  +1.3 %   +2.3 %\n\n"
            "time over all devices  stage     A     B  B - A     of A\n"
            "forward                    0  4 ms  2 ms  -2 ms  -50.0 %\n"
            "backward                   1  5 ms  5 ms   +0 s   +0.0 %\n"
            "communication              0  1 ms  1 ms   +0 s   +0.0 %\n");
}

TEST(TimelineDifference, KindsOfOneAlone) {
  Timeline other = two_boxes(0.004, 0.005);
  other.activities.pop_back();
  const TimelineDifference found = difference(other, two_boxes(0.004, 0.005));
  ASSERT_EQ(found.kinds.size(), 3U);
  EXPECT_EQ(found.kinds[1].time.first, 0);
  EXPECT_NE(difference_text(found).find("backward                   1   0 s  5 ms  +5 ms       -\n"), std::string::npos);
}

TEST(TimelineDifference, OtherDevicesAreSaid) {
  const Timeline one = test::small_timeline();
  Timeline other = one;
  other.devices[1] = "actor 1";
  EXPECT_NE(difference(one, other).other_devices.find("other names: device 0, device 1; and device 0, actor 1."), std::string::npos);
  EXPECT_EQ(difference(one, other).peaks[1].device, "device 1 | actor 1");
  other.devices.push_back("actor 2");
  other.memory.emplace_back();
  EXPECT_NE(difference(one, other).other_devices.find("A has 2 devices, B 3 devices."), std::string::npos);
  EXPECT_EQ(difference(one, other).peaks[2].device, "none | actor 2");
}

TEST(TimelineDifference, SecondsAndUnitsHaveNone) {
  Timeline units = test::small_timeline();
  units.seconds = false;
  EXPECT_NE(
      test::message_of([&] { difference(test::small_timeline(), units); }).find("have no difference: one is in seconds, the other is not"),
      std::string::npos);
}

}  // namespace
}  // namespace penstock
