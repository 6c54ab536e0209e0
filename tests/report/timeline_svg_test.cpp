// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_svg.h"

#include <gtest/gtest.h>

#include "support/golden.h"
#include "support/rounds.h"
#include "support/timelines.h"

namespace penstock {
namespace {

TEST(TimelineSvg, SmallTimeline) {
  test::expect_golden("report/small_timeline.svg", timeline_svg(test::small_timeline()));
}

TEST(TimelineSvg, NamesAreEscaped) {
  Timeline timeline = test::small_timeline();
  timeline.devices[0] = "<a & \"b\">";
  const std::string svg = timeline_svg(timeline);
  EXPECT_NE(svg.find("&lt;a &amp; &quot;b&quot;&gt;"), std::string::npos);
  EXPECT_EQ(svg.find("<a "), std::string::npos);
}

// A name that is wider than the room beside the boxes is in two lines, as that of a plan's row.
TEST(TimelineSvg, LongNamesAreInTwoLines) {
  Timeline timeline = test::small_timeline();
  timeline.devices[0] = "stage 0 (devices 0,1,2,3)";
  const std::string svg = timeline_svg(timeline);
  EXPECT_NE(svg.find(">stage 0</text>\n<text class=\"small\" x=\"8\" y="), std::string::npos);
  EXPECT_NE(svg.find(">(devices 0,1,2,3)</text>"), std::string::npos);
}

TEST(TimelineSvg, ThinBoxesAreMerged) {
  const std::string svg = timeline_svg(test::dense_timeline(4, 25000));
  EXPECT_LT(svg.size(), 600'000U);
  EXPECT_EQ(svg.find("<g>"), std::string::npos);
}

TEST(TimelineSvg, ChunksOfADeviceDiffer) {
  Timeline timeline = test::small_timeline();
  EXPECT_EQ(timeline_svg(timeline).find("class=\"chunks\""), std::string::npos);
  timeline.activities[1].stage = 2;  // the second forward on device 0
  const std::string svg = timeline_svg(timeline);
  for (const char* part : {"class=\"F\"", "class=\"F c1\"", ">0F0</text>", ">2F1</text>", ".F.c1 { fill: ", "class=\"chunks\""})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
}

TEST(TimelineSvg, WhatIsPointedAtIsSaidInWords) {
  const std::string svg = timeline_svg(test::small_timeline());
  for (const char* words : {"<title>forward of stage 0, micro-batch 0\n", "<title>input gradients of stage 1, micro-batch 1\n",
                            "<title>transfer from device 0 to device 1, 4.0 KiB\n", "<title>after.0\n"})
    EXPECT_NE(svg.find(words), std::string::npos) << words;
}

TEST(TimelineSvg, TooManyArrowsAreLeftOut) {
  Timeline timeline = test::small_timeline();
  EXPECT_NE(timeline_svg(timeline).find("class=\"arrow\""), std::string::npos);
  EXPECT_NE(timeline_svg(timeline).find("communication (lines)"), std::string::npos);
  const Activity transfer = timeline.activities[2];
  for (int i = 0; i < 4000; ++i) {
    timeline.activities.push_back(transfer);
    timeline.activities.back().begin = i * 5e-6;
    timeline.activities.back().end = 0.02 - (i % 7) * 1e-3;
  }
  EXPECT_EQ(timeline_svg(timeline).find("class=\"arrow\""), std::string::npos);
}

TEST(TimelineSvg, DrawsAnything) {
  timeline_svg({});
  for (std::uint64_t seed = 0; seed < test::rounds(50u); ++seed) {
    std::mt19937_64 random(seed);
    const std::string svg = timeline_svg(test::random_timeline(random));
    EXPECT_EQ(svg.find("nan"), std::string::npos) << "seed " << seed;
    EXPECT_EQ(svg.find("inf"), std::string::npos) << "seed " << seed;
  }
}

}  // namespace
}  // namespace penstock
