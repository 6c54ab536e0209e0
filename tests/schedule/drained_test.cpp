// SPDX-License-Identifier: Apache-2.0
#include "schedule/drained.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "schedule/in_one_row.h"
#include "schedule/versions.h"
#include "schedule/work.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;

constexpr const char* kNone = "no error";

// Any schedule of one step, K times: drained, and valid as its steps are.
TEST(DrainedWindows, AnyScheduleStepByStep) {
  const Schedule table = make_schedule("1f1b", {.actors = 2, .microbatches = 2, .window = 2});
  EXPECT_EQ(print(table), "0F0,0F1,0B0,0B1,0U1,0F2,0F3,0B2,0B3,0U3\n1F0,1B0,1F1,1B1,1U1,1F2,1B2,1F3,1B3,1U3\n");
  EXPECT_EQ(print(make_schedule("nestpipe", {.actors = 3, .microbatches = 2, .window = 2})),
            print(make_schedule("zb-h1", {.actors = 3, .microbatches = 2, .window = 2})));
  for (const ScheduleInfo& info : schedules()) {
    if (std::ranges::find(info.takes, "--window") != info.takes.end()) continue;
    for (const int slices : {1, 2}) {
      SCOPED_TRACE(concat(info.name, ", ", slices, " slices"));
      ScheduleOptions options{.actors = 2, .microbatches = 4, .window = 3};
      if (info.chunked) options.chunks = 2;
      if (info.name == "helixpipe") options.chunks = 3;
      options.slices = slices;
      Schedule window;
      const std::string unmade = message_of([&] { window = make_schedule(info.name, options); });
      if (unmade != kNone) continue;  // takes no slices, or no so many
      const std::string refused = message_of([&] { validate(window, shape_of(window), 12); });
      EXPECT_TRUE(refused == kNone || (info.name != "helixpipe" && info.name != "slimpipe-exchange"));
      if (refused != kNone) {
        EXPECT_NE(refused.find(info.name == "zeropp" ? "UNSHARD is of no step"
                                                     : "in a window of steps each actor would have versions of its own"),
                  std::string::npos)
            << refused;
        continue;
      }
      EXPECT_EQ(message_of([&] { check_drained(window, shape_of(window), ""); }), kNone);
      options.window = 1;
      Schedule once = with_updates(make_schedule(info.name, options));
      for (auto& row : once.actors)
        for (Action& action : row) action.fused_with_next = false;
      EXPECT_EQ(print(once), print(one_step(window, 2)));
    }
  }
}

// Attention on several actors may have parameters, so each of them updates it. In a table without these updates it has none: it is in no
// version, and is never late.
TEST(DrainedWindows, OfStagesWithoutParameters) {
  Schedule table = make_schedule("helixpipe", {.actors = 2, .microbatches = 2, .window = 2, .chunks = 1});
  EXPECT_EQ(print(table),
            "0F0,0F1,1F1,3F0,4F0,4F1,4B1,4B0,4U1,3B0,3U1,1B1,1U1,0B1,0B0,0U1,0F2,0F3,1F3,3F2,4F2,4F3,4B3,4B2,4U3,3B2,3U3,1B3,1U3,0B3,"
            "0B2,0U3\n"
            "1F0,2F0,2F1,3F1,3B1,3U1,2B1,2B0,2U1,1B0,1U1,1F2,2F2,2F3,3F3,3B3,3U3,2B3,2B2,2U3,1B2,1U3\n");
  EXPECT_EQ(message_of([&] { validate(table, chain(5), 4); }), kNone);
  for (auto& row : table.actors) std::erase_if(row, [](const Action& action) { return action.kind == Kind::U && action.stage % 2 == 1; });
  EXPECT_EQ(unversioned_stages(table), (std::vector<bool>{false, true, false, true, false}));
  EXPECT_EQ(message_of([&] { validate(parse_schedule(print(table), "t.csv"), shape_of(table), 4); }), kNone);
  for (const std::int32_t actor : {0, 1}) {
    EXPECT_EQ(staleness(table, actor), 0);
    EXPECT_EQ(versions_held(table, actor), 1);
  }
  StageShape shape = chain(5);
  EXPECT_NE(message_of([&] { validate(table, shape, 4); }).find("behind it step 0 has no update of stage 1\n"), std::string::npos);
  shape.has_parameters[1] = shape.has_parameters[3] = false;
  EXPECT_EQ(message_of([&] { validate(table, shape, 4); }), kNone);
}

// Each actor that has a stage says when it is updated there, and each update is of all their gradients.
TEST(DrainedWindows, OfReplicas) {
  const auto refused = [](const std::string& csv) { return message_of([&] { validate(parse_schedule(csv, "t.csv"), chain(1), 4); }); };
  EXPECT_EQ(refused("0F0,0B0,0U1,0F2,0B2,0U3\n0F1,0B1,0U1,0F3,0B3,0U3\n"), kNone);
  EXPECT_TRUE(refused("0F0,0F2,0B0,0U1,0B2,0U3\n0F1,0B1,0U1,0F3,0B3,0U3\n")
                  .starts_with("t.csv:1:2: 0F2 reads version 0 of its stage in step 1\n"
                               "  stage 0 is on several actors, whose updates are of the gradients of all of them\n"));
  EXPECT_NE(refused("0F0,0B0,0F2,0B2\n0F1,0B1,0U1,0F3,0B3,0U3\n").find("has no update of stage 0"), std::string::npos);
  for (const char* name : {"chimera", "bitpipe"}) {
    const Schedule table = make_schedule(name, {.actors = 4, .microbatches = 4, .window = 3, .chunks = name[0] == 'b' ? 2 : 1});
    EXPECT_EQ(message_of([&] { validate(table, shape_of(table)); }), kNone) << name;
    const Schedule row = in_one_row(table, shape_of(table));
    EXPECT_EQ(message_of([&] { validate(row, shape_of(table)); }), kNone) << name;
    EXPECT_EQ(std::ranges::count(row.actors[0], Kind::U, &Action::kind), 3 * table.stages()) << name;
  }
}

TEST(DrainedWindows, SayWhatIsLateOrWaits) {
  const auto refused = [](const std::string& csv) {
    return message_of([&] {
      const Schedule table = parse_schedule(csv, "t.csv");
      validate(table, shape_of(table));
      check_drained(table, shape_of(table), "clipped");
    });
  };
  const std::string rest =
      "\n  clipped\n  hint: neither clip (--set clip=0) nor read a parameter on several actors (--set tied=0), or let each step end before "
      "the next begins, as any schedule of one step does: --schedule 1f1b "
      "--window 2";
  EXPECT_EQ(refused("0F0,0F1,0B0,0U0,0B1,0U1\n"), "t.csv:1:2: 0F1 reads version 0 of its stage in step 1" + rest);
  // Nothing is late, but the step's last weight gradient stands behind what reads its updates, in the row or in others.
  EXPECT_EQ(refused("0F0,1F0,1I0,0B0,0U0,0F1,1W0,1U0,1F1,1I1,1W1,1U1,0B1,0U1\n"),
            "t.csv:1:6: 0F1 reads what step 0 updates, and t.csv:1:7: 1W0 of that step needs it" + rest);
  EXPECT_EQ(refused("0F0,0B0,0U0,0F1,0B1,0U1\n1F0,2F0,2I0,1B0,1U0,1F1,2W0,2U0,2F1,2I1,2W1,2U1,1B1,1U1\n"),
            "t.csv:1:4: 0F1 reads what step 0 updates, and t.csv:2:7: 2W0 of that step needs it" + rest);
  EXPECT_EQ(refused("0F0,0B0,0U0,0F1,0B1,0U1\n1F0,1B0,1U0,1F1,1B1,1U1\n"), kNone);
}

// By the closure of all needs.
TEST(DrainedWindows, FirstNeedsOfDrawnTables) {
  for (int seed = 0; seed < test::rounds(200); ++seed) {
    test::Random random(seed);
    const StageShape shape = chain(test::draw(random, 1, 4));
    const int microbatches = test::draw(random, 1, 3), steps = test::draw(random, 2, 4);
    const Schedule table = test::random_window(random, shape, test::draw(random, 1, 3), microbatches, steps);
    SCOPED_TRACE(concat("seed ", seed, "\n", print(table)));
    const WorkIndex work = index_work(table, shape, table.microbatches());
    std::vector<std::vector<FirstNeed>> needs = first_needs(table, shape);
    const auto step_of = [&](Position p) { return work.at(p).microbatch / microbatches; };
    std::vector<std::vector<std::int32_t>> expected;
    for (const auto& row : needs) {
      expected.emplace_back();
      for (const FirstNeed& need : row) {
        EXPECT_EQ(step_of(need.by), need.step);
        expected.back().push_back(steps);
      }
    }
    const auto visit = [&](auto&& again, Position p, std::int32_t step) -> void {
      if (expected[p.actor][p.index] <= step) return;
      expected[p.actor][p.index] = step;
      if (p.index > 0) again(again, {p.actor, p.index - 1}, step);
      for_each_need(work, work.at(p), [&](Position need) { again(again, need, step); });
    };
    for (std::int32_t a = 0; a < std::ssize(needs); ++a)
      for (std::int32_t i = 0; i < std::ssize(needs[a]); ++i) visit(visit, {a, i}, step_of({a, i}));
    for (std::size_t a = 0; a < needs.size(); ++a)
      for (std::size_t i = 0; i < needs[a].size(); ++i) ASSERT_EQ(needs[a][i].step, expected[a][i]) << a << " " << i;
  }
}

}  // namespace
}  // namespace penstock
