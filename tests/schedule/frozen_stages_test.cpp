// SPDX-License-Identifier: Apache-2.0
// Frozen stages, placed where a step's actors wait (--frozen).
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/table.h"
#include "support/errors.h"
#include "support/random_schedule.h"

namespace penstock {
namespace {

using test::draw;
using test::message_of;
using test::Random;

Schedule table_of(const char* name, int actors, int microbatches, int window, std::vector<double> frozen) {
  return make_schedule(name, {.actors = actors, .microbatches = microbatches, .window = window, .frozen = std::move(frozen)});
}

double time_of(const Schedule& table) {
  return time_table(table, shape_of(table), uniform_costs(table)).makespan;
}

double busy_of(const Schedule& table) {
  const TableTime time = time_table(table, shape_of(table), uniform_costs(table));
  return std::accumulate(time.busy.begin(), time.busy.end(), 0.0);
}

// DiffusionPipe's steps (2405.01248, section 5): 1F1B on 4 actors takes 21 for 4 micro-batches, and 10 layers of 2.88 for the
// batch, 0.72 for a micro-batch, find a place in its idle time; 3 steps take 28.8 / 4 + 3 * 21.
TEST(FrozenStages, TakeWhatIsPublished) {
  const std::vector<double> layers(10, 0.72);
  EXPECT_NEAR(time_of(table_of("1f1b", 4, 4, 1, layers)), 28.2, 1e-9);
  EXPECT_NEAR(time_of(table_of("1f1b", 4, 4, 3, layers)), 70.2, 1e-9);
  EXPECT_NEAR(time_of(table_of("1f1b", 4, 4, 12, layers)), 7.2 + 12 * 21, 1e-9);
}

// A table with frozen stages is valid, has each of their forwards once, and is never slower than with all of them ahead of each step.
TEST(FrozenStages, FillWhatIsIdle) {
  for (int seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    std::vector<double> frozen(draw(random, 1, 4));
    for (double& time : frozen) time = draw(random, 1, 20) / 8.0;
    const char* name = std::vector{"1f1b", "zb-h1", "gpipe", "eager-1f1b"}[draw(random, 0, 3)];
    const int actors = draw(random, 1, 6), microbatches = draw(random, 1, 8), window = draw(random, 1, 4);
    const Schedule table = table_of(name, actors, microbatches, window, frozen);
    SCOPED_TRACE(concat("seed ", seed, ": ", name, ", ", actors, " actors, ", microbatches, " micro-batches, ", window, " steps"));
    validate(table, shape_of(table), microbatches * window);
    const double step = time_of(make_schedule(name, {.actors = actors, .microbatches = microbatches}));
    const double ahead = time_of(table_of(name, actors, microbatches, 1, frozen)) - step;
    EXPECT_LE(time_of(table), window * (step + ahead) + 1e-9);
    const double work = microbatches * std::accumulate(frozen.begin(), frozen.end(), 0.0);
    EXPECT_NEAR(busy_of(table), window * (work + 3.0 * actors * microbatches), 1e-9);
  }
}

TEST(FrozenStages, MistakesAreNamed) {
  const auto made = [](const char* name, const ScheduleOptions& options) { return message_of([&] { make_schedule(name, options); }); };
  EXPECT_EQ(made("1f1b", {.frozen = {1, 0}}), "1f1b: --frozen must be above 0 and at most 1e6, not 0.0");
  for (const std::string own : {"pipedream", "nestpipe"})
    EXPECT_EQ(made(own.c_str(), {.window = 2, .frozen = {1}}),
              own +
                  " orders a window's steps itself, so it takes no --frozen\n"
                  "  hint: frozen stages are placed in a table of one step, which --window repeats: 1f1b, zb-h1, gpipe");
  EXPECT_EQ(made("1f1b", {.slices = 2, .frozen = {1}}), "1f1b: --frozen and --slices do not go together\n  hint: leave out --slices");
  EXPECT_EQ(made("1f1b", {.window = 5000, .frozen = {1}}), "1f1b: --window must be at most 4096, not 5000");
  // The last step has no next one.
  Schedule table = table_of("1f1b", 2, 2, 2, {1});
  for (auto& row : table.actors)
    for (Action& action : row)
      if (action.stage == 0 && action.microbatch == 3) action.microbatch = 4;
  EXPECT_EQ(message_of([&] { validate(table, shape_of(table), 4); }),
            "1f1b:1:4: 0F4 names an unknown micro-batch\n  2 steps have 4 micro-batches, 0 to 3\n"
            "  hint: the last step has no next one whose work it could do");
  EXPECT_EQ(message_of([&] { validate(table_of("1f1b", 2, 2, 2, {1}), chain(3), 4); }),
            "1f1b: stage 0 is trained, and the table has its forward alone\n  hint: let pipeline.frozen have a time for each of the "
            "model's frozen stages, which are in front, and for no other");
  // A stage that is updated has one actor, a frozen one need not.
  Schedule moved = table_of("1f1b", 2, 2, 2, {1});
  moved.forward_times.clear();
  EXPECT_THROW(validate(moved, shape_of(moved), 4), Error);
}

}  // namespace
}  // namespace penstock
