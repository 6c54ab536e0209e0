// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_text.h"

#include <gtest/gtest.h>

#include "report/timeline_parts.h"
#include "support/golden.h"
#include "support/rounds.h"
#include "support/timelines.h"

namespace penstock {
namespace {

TEST(TimelineText, SmallTimeline) {
  test::expect_golden("report/small_timeline.txt", timeline_text({test::small_timeline()}, {60, false}));
}

TEST(TimelineText, SeveralOnOneScale) {
  Timeline slower = test::small_timeline();
  slower.title = "slower";
  slower.memory.clear();
  for (Activity& activity : slower.activities) activity.begin *= 1.5, activity.end *= 1.5;
  slower.makespan *= 1.5;
  test::expect_golden("report/two_timelines.txt", timeline_text({test::small_timeline(), slower}, {60, false}));
}

TEST(TimelineText, ColourChangesNothingElse) {
  std::string text = timeline_text({test::small_timeline()}, {60, true});
  EXPECT_NE(text.find("\033[30;48;5;117mFFFF"), std::string::npos);
  for (std::size_t at; (at = text.find('\033')) != std::string::npos;) text.erase(at, text.find('m', at) - at + 1);
  EXPECT_EQ(text, timeline_text({test::small_timeline()}, {60, false}));
}

TEST(TimelineText, DrawsAnything) {
  for (std::uint64_t seed = 0; seed < test::rounds(100u); ++seed) {
    std::mt19937_64 random(seed);
    timeline_text({test::random_timeline(random), test::random_timeline(random)}, {1 + static_cast<int>(random() % 50), false});
  }
  EXPECT_EQ(timeline_text({Timeline()}, {10, false}), ": 0 s\n         |0 s      |1 s\n. nothing\n");
}

TEST(TimelineParts, TimesForPeople) {
  EXPECT_EQ(time_text(12.3456, true), "12.35 s");
  EXPECT_EQ(time_text(0.25, true), "250 ms");
  EXPECT_EQ(time_text(1.5e-6, true), "1.5 us");
  EXPECT_EQ(time_text(2e-9, true), "2 ns");
  EXPECT_EQ(time_text(36, false), "36");
  EXPECT_EQ(amount_text(1536, true), "1.5 KiB");
  EXPECT_EQ(amount_text(1, false), "1 micro-batch");
  EXPECT_EQ(amount_text(2.5, false), "2.5 micro-batches");
}

TEST(TimelineParts, TicksStandAtRoundTimes) {
  EXPECT_EQ(time_axis(0.02, 4, true).text(0.005), "5 ms");
  EXPECT_EQ(time_axis(0.02, 4, true).step, 0.005);
  EXPECT_EQ(time_axis(36, 8, false).text(10), "10");
  EXPECT_EQ(time_axis(1.2, 12, true).text(0.3), "0.3 s");
}

TEST(TimelineParts, AColumnShowsWhatTakesMostOfIt) {
  const Timeline timeline = test::small_timeline();
  const auto device = by_device(timeline, Lane::compute)[0];
  const std::vector<int> row = dominant_looks(device, 4e-3, 5);  // F F | F host I | I | W | W U
  EXPECT_EQ(row, (std::vector<int>{0, 0, 2, 3, 3}));
}

}  // namespace
}  // namespace penstock
