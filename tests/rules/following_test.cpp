// SPDX-License-Identifier: Apache-2.0
// Rules say more than the order of F, B, I and W: residuals, gathers, updates, slices, windows.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/text.h"
#include "rules/load_schedule.h"
#include "support/errors.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;

Schedule table_of(const std::string& text, const ScheduleOptions& options) {
  return make_schedule(parse_rules("penstock rules 1\n" + text, "my.rules"), options);
}

const std::string k1F1B = "prefer B F limit p-r ";

TEST(RulesResiduals, Recompute) {
  const ScheduleOptions options{.actors = 3, .microbatches = 4};
  // All but those whose backward comes next.
  EXPECT_EQ(print(table_of(k1F1B + "recompute", options)),
            "0F0,0F1,0F2,0R0,0B0,0F3,0R1,0B1,0R2,0B2,0R3,0B3\n"
            "1F0,1F1,1R0,1B0,1F2,1R1,1B1,1F3,1R2,1B2,1R3,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  // All but one of those in flight: 0F3 begins when nothing that is kept is left.
  EXPECT_EQ(print(table_of(k1F1B + "recompute beyond 1", options)),
            "0F0,0F1,0F2,0B0,0F3,0R1,0B1,0R2,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1R1,1B1,1F3,1B2,1R3,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  EXPECT_EQ(print(table_of(k1F1B + "recompute beyond p-r", options)), print(make_schedule("1f1b", options)));
}

TEST(RulesResiduals, EachStage) {
  const ScheduleOptions options{.actors = 1, .microbatches = 2, .chunks = 2};
  const std::string breadth = "placement loop warm-up F drain B order F breadth order B breadth ";
  EXPECT_EQ(print(table_of(breadth, options)), "0F0,0F1,1F0,1F1,1B0,1B1,0B0,0B1\n");
  EXPECT_EQ(print(table_of(breadth + "recompute each beyond s", options)), "0F0,0F1,1F0,1F1,1B0,1R1,1B1,0R0,0B0,0R1,0B1\n");
  EXPECT_EQ(print(table_of(breadth + "recompute beyond 3", options)), "0F0,0F1,1F0,1F1,1B0,1R1,1B1,0B0,0B1\n");
}

// A micro-batch counts until its W.
TEST(RulesResiduals, SplitBackwards) {
  const ScheduleOptions options{.actors = 1, .microbatches = 4};
  const std::string split = "prefer F I W limit 2 ";
  EXPECT_EQ(print(table_of(split, options)), "0F0,0F1,0I0,0I1,0W0,0F2,0I2,0W1,0F3,0I3,0W2,0W3\n");
  EXPECT_EQ(print(table_of("prefer F I W limit 3 recompute beyond 1", options)),
            "0F0,0F1,0F2,0I0,0R1,0I1,0R2,0I2,0W0,0F3,0I3,0W1,0W2,0W3\n");
}

TEST(RulesResiduals, Offload) {
  const ScheduleOptions options{.actors = 3, .microbatches = 4};
  EXPECT_EQ(print(table_of(k1F1B + "offload", options)),
            "0F0,0OFFLOAD0,0F1,0OFFLOAD1,0RELOAD0,0F2,0OFFLOAD2,0B0,0RELOAD1,0F3,0OFFLOAD3,0RELOAD2,0B1,0RELOAD3,0B2,0B3\n"
            "1F0,1F1,1OFFLOAD1,1B0,1RELOAD1,1F2,1OFFLOAD2,1B1,1RELOAD2,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
  // The first stays, the second goes to the host, the third is computed again.
  EXPECT_EQ(print(table_of(k1F1B + "recompute beyond 2 offload beyond 1", options)),
            "0F0,0F1,0OFFLOAD1,0F2,0B0,0RELOAD1,0F3,0B1,0R2,0B2,0B3\n"
            "1F0,1F1,1B0,1F2,1OFFLOAD2,1B1,1RELOAD2,1F3,1B2,1B3\n"
            "2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n");
}

TEST(RulesResiduals, NumbersWithoutAValue) {
  EXPECT_EQ(message_of([&] { table_of("prefer F B\nrecompute beyond 1/r", {}); }),
            "my.rules:3:18: 1/r divides by zero\n  where p = 2, m = 4, v = 1, n = 1, r = 0, s = 0");
}

TEST(RulesGathers, AreThoseOfTheTable) {
  const ScheduleOptions options{.actors = 2, .microbatches = 3, .chunks = 2};
  const std::string breadth = "placement loop warm-up F drain B order F breadth order B breadth ";
  const Schedule plain = table_of(breadth, options);
  EXPECT_EQ(print(table_of(breadth + "gather", options)), print(with_gathers(plain)));
  EXPECT_EQ(print(table_of(breadth + "gather turns", options)), print(with_gathers(plain, /*turns=*/true)));
  EXPECT_EQ(print(table_of("warm-up F drain B gather", {.actors = 1, .microbatches = 2})),
            "0UNSHARD,0F0,0F1,0RESHARD,0UNSHARD,0B0,0B1,0RESHARD,0REDUCE_GRAD\n");
  EXPECT_EQ(message_of([&] { table_of("gather", {.window = 2}); }),
            "my.rules: gathers are of a table of one step, and this one is a window's\n"
            "  hint: leave out `gather`: with pipeline.zero = 2 or 3 each step of a window gathers");
  EXPECT_EQ(print(table_of("gather", {.actors = 1, .microbatches = 1, .forward_only = true})), "0F0\n");
}

TEST(RulesUpdates, StandBehindTheirStage) {
  const ScheduleOptions options{.actors = 2, .microbatches = 2};
  EXPECT_EQ(print(table_of(k1F1B + "update", options)), "0F0,0F1,0B0,0B1,0U\n1F0,1B0,1F1,1B1,1U\n");
  EXPECT_EQ(print(table_of("warm-up F drain B gather update", {.actors = 1, .microbatches = 1})),
            "0UNSHARD,0F0,0RESHARD,0UNSHARD,0B0,0RESHARD,0REDUCE_GRAD,0U\n");
}

TEST(RulesSlices, AreOrderedOneByOne) {
  for (const int p : {1, 2, 4})
    for (const int m : {1, 3, 5})
      for (const int n : {1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << "p " << p << " m " << m << " n " << n);
        const ScheduleOptions options{.actors = p, .microbatches = m, .slices = n};
        const Schedule table = table_of("prefer B/F limit n+p-1-r slices", options);
        EXPECT_EQ(print(table), print(make_schedule("seq1f1b", options)));
      }
  // A stage's number is s to each of its slices.
  EXPECT_EQ(print(table_of("placement loop warm-up F drain B recompute each beyond 1-s slices",
                           {.actors = 1, .microbatches = 1, .chunks = 2, .slices = 2})),
            "0.0F0,0.1F0,1.0F0,1.1F0,1.1B0,1.0R0,1.0B0,0.1B0,0.0B0\n");
}

TEST(RulesSlices, SayWhichOneWaits) {
  const std::string error = message_of([] { table_of("limit 1 slices", {.actors = 1, .microbatches = 1, .slices = 2}); });
  EXPECT_NE(error.find("actor 0: 0.1F0 waits: 1 in flight, and \"limit 1\" allows 1"), std::string::npos) << error;
}

TEST(RulesWindows, AreNeverDrained) {
  for (const int p : {1, 2, 4})
    for (const int m : {1, 3, 4})
      for (const int steps : {1, 2, 5}) {
        SCOPED_TRACE(testing::Message() << "p " << p << " m " << m << " steps " << steps);
        const ScheduleOptions options{.actors = p, .microbatches = m, .window = steps};
        EXPECT_EQ(print(table_of(k1F1B + "window undrained", options)), print(make_schedule("pipedream", options)));
        EXPECT_EQ(print(table_of(k1F1B + "window undrained missing min(n*(p+m-2)/m, 5)", options)),
                  print(make_schedule("hetpipe", options)));
      }
  const ScheduleOptions options{.actors = 3, .microbatches = 2, .window = 3};
  EXPECT_EQ(print(table_of(k1F1B + "window undrained missing 1", options)), print(make_schedule("pipedream-2bw", options)));
  EXPECT_EQ(print(table_of(k1F1B + "recompute window undrained", {.actors = 2, .microbatches = 1, .window = 2})),
            "0F0,0F1,0R0,0B0,0U0,0R1,0B1,0U1\n1F0,1B0,1U0,1F1,1B1,1U1\n");
}

TEST(RulesWindows, Errors) {
  const auto error = [](const std::string& text, const ScheduleOptions& options) { return message_of([&] { table_of(text, options); }); };
  EXPECT_EQ(error(k1F1B + "window undrained missing m-p-3", {.window = 2}),
            "my.rules: the forwards of a step miss m-p-3 updates, which are -1\n  hint: 0 or more: of those of the steps before");
  EXPECT_EQ(error(k1F1B + "window undrained gather", {}),
            "my.rules: gathers are of a table of one step, and this one is a window's\n"
            "  hint: leave out `gather`: with pipeline.zero = 2 or 3 each step of a window gathers");
  // A version that is not made when it is read is refused with its cell, as in any table.
  const Schedule early = table_of(k1F1B + "window undrained missing 0", {.actors = 2, .microbatches = 1, .window = 2});
  EXPECT_EQ(message_of([&] { validate(early, shape_of(early)); }).substr(0, 20), "my.rules:1:2: 0@1F1 ");
}

// Whatever is said together: the table is valid, reads back, and has of all F, B, I and W the order that it has without these words.
TEST(RulesWords, GoTogether) {
  const std::array<std::string, 4> orders = {"prefer B F limit p-r+1 ", "prefer I F W limit 2*p ", "placement loop 2 prefer F/B ",
                                             "placement wave 2 prefer I F W order F depth "};
  const std::array<std::string, 6> words = {"recompute beyond r ", "offload each beyond 1 ", "gather ", "update ", "slices ",
                                            "window undrained "};
  std::mt19937_64 random(11);
  for (int round = 0; round < test::rounds(200); ++round) {
    std::string text = orders[random() % orders.size()], ordering = text;
    const bool sliced = random() % 2 == 0, window = random() % 2 == 0;
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (random() % 2 == 0 || (window && words[i] == "gather ")) continue;
      if (words[i] == "window undrained " && !window) continue;
      text += words[i];
      if (words[i] == "slices " || words[i] == "window undrained ") ordering += words[i];
    }
    SCOPED_TRACE(concat("seed 11, round ", round, ": ", text));
    const ScheduleOptions options{.actors = 2 + static_cast<int>(random() % 3),
                                  .microbatches = 1 + static_cast<int>(random() % 6),
                                  .window = window ? 3 : 1,
                                  .slices = sliced ? 2 : 1};
    const Schedule table = table_of(text, options);
    const StageShape shape = shape_of(table);
    ASSERT_EQ(message_of([&] { validate(table, shape, options.microbatches * options.window); }), "no error") << print(table);
    EXPECT_EQ(print(parse_schedule(print(table), "t.csv")), print(table));
    const auto plain = [](Schedule of) {
      for (auto& row : of.actors) std::erase_if(row, [](const Action& action) { return action.kind > Kind::W; });
      return print(of);
    };
    EXPECT_EQ(plain(table), plain(table_of(ordering, options)));
    if (window || sliced) continue;
    const TableCosts costs = uniform_costs(table.stages(), {.offload = 0.5, .gather = 0.25, .reduce = 0.25});
    const Rules rules = parse_rules("penstock rules 1\n" + text, "my.rules");
    const Schedule by_costs = schedule_by(rules, options, costs).schedule;
    EXPECT_EQ(message_of([&] { validate(by_costs, shape, options.microbatches); }), "no error") << print(by_costs);
  }
}

}  // namespace
}  // namespace penstock
