// SPDX-License-Identifier: Apache-2.0
// Self-conditioning: a forward without a backward, whose output enters the first stage again.
#include <gtest/gtest.h>

#include "base/text.h"
#include "penstock/table.h"
#include "schedule/versions.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Schedule table_of(int actors, int microbatches) {
  return make_schedule("1f1b", {.actors = actors, .microbatches = microbatches, .self_conditioning = true});
}

// T = max(m, p) F + (m + p - 1)(F + B).
TEST(SelfConditioning, TakesWhatIsPublished) {
  for (const double backward : {1.0, 2.0, 2.5})
    for (const int p : {1, 2, 3, 4, 8})
      for (const int m : {1, 2, 4, 7, 8, 13}) {
        const Schedule table = table_of(p, m);
        validate(table, shape_of(table), m);
        const TableTime time = time_table(table, shape_of(table), uniform_costs(2 * p, {.forward = 1, .backward = backward}));
        EXPECT_EQ(time.makespan, std::max(m, p) + (m + p - 1) * (1 + backward)) << p << " actors, " << m << " micro-batches";
        for (int i = 0; i < p; ++i) EXPECT_EQ(time.peak_live[i], std::min(p - i, m)) << "as 1F1B";
      }
  EXPECT_EQ(time_table(table_of(4, 4), shape_of(table_of(4, 4)), uniform_costs(8)).makespan, 25);
  EXPECT_EQ(time_table(table_of(4, 8), shape_of(table_of(4, 8)), uniform_costs(8)).makespan, 41);
}

TEST(SelfConditioning, ItsFirstStagesHaveAForwardAlone) {
  const Schedule table = table_of(2, 2);
  EXPECT_EQ(print(table), "#forward,1.0,1.0\n0F0,0F1,2F0,2F1,2B0,2B1\n1F0,1F1,3F0,3B0,3F1,3B1\n");
  EXPECT_EQ(shape_of(table).has_backward, (std::vector<bool>{false, false, true, true}));
  EXPECT_EQ(print(with_updates(table)), "#forward,1.0,1.0\n0F0,0F1,2F0,2F1,2B0,2B1,2U\n1F0,1F1,3F0,3B0,3F1,3B1,3U\n");
  const Schedule slices = sliced(table, 3);
  EXPECT_EQ(message_of([&] { validate(slices, shape_of(slices)); }), "no error");
  const Schedule split = make_schedule("1f1b", {.actors = 2, .microbatches = 2, .self_conditioning = true, .split_backward = true});
  EXPECT_EQ(message_of([&] { validate(split, shape_of(split)); }), "no error");
}

// Frozen stages stand in front of both ways, and the first way's forwards in their own step: its frozen ones are in the step before.
TEST(SelfConditioning, GoesWithFrozenStages) {
  const auto made = [](int window) {
    return make_schedule("1f1b", {.actors = 2, .microbatches = 2, .window = window, .self_conditioning = true, .frozen = {0.5}});
  };
  EXPECT_EQ(print(made(1)), "#forward,0.5,1.0,1.0\n0F0,1F0,1F1,3F0,3F1,3B0,3B1\n0F1,2F0,2F1,4F0,4B0,4F1,4B1\n");
  const Schedule window = made(3);
  validate(window, shape_of(window), 6);
  for (const std::vector<Action>& row : window.actors)
    for (std::size_t i = 0; i < row.size(); ++i)
      for (std::size_t behind = i + 1; behind < row.size(); ++behind)
        if (row[i].stage > 0) {
          EXPECT_LE(row[i].microbatch / 2, row[behind].stage > 0 ? row[behind].microbatch / 2 : 2) << print(window);
        }
  // What runs forward alone reads what the step before has made.
  const std::vector<std::vector<ReadVersion>> read = read_versions(window);
  for (std::size_t a = 0; a < read.size(); ++a)
    for (std::size_t i = 0; i < read[a].size(); ++i)
      if (const Action& action = window.actors[a][i]; action.stage > 0 && action.kind == Kind::F) {
        EXPECT_EQ(read[a][i].version, action.microbatch / 2) << text(action);
      }
}

TEST(SelfConditioning, MistakesAreNamed) {
  EXPECT_EQ(message_of([] { make_schedule("gpipe", {.self_conditioning = true}); }),
            "gpipe takes no --self-conditioning\n  hint: schedules that do: 1f1b");
  Schedule table = table_of(2, 2);
  table.actors[0].erase(table.actors[0].begin() + 1);
  EXPECT_TRUE(message_of([&] { validate(table, shape_of(table)); }).find("0F1") != std::string::npos);
}

}  // namespace
}  // namespace penstock
