// SPDX-License-Identifier: Apache-2.0
// Two backbones in opposite directions.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "penstock/table.h"
#include "simulate/fill_idle.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

Schedule opposite(int actors, int microbatches, int window = 1, std::vector<double> frozen = {}) {
  return make_schedule("bidirectional",
                       {.actors = actors, .microbatches = microbatches, .window = window, .chunks = 2, .frozen = std::move(frozen)});
}

double time_of(const Schedule& table, const StageShape& shape) {
  return time_table(table, shape, uniform_costs(table)).makespan;
}

double time_of_1f1b(int actors, int microbatches) {
  const Schedule table = make_schedule("1f1b", {.actors = actors, .microbatches = microbatches});
  return time_of(table, shape_of(table));
}

// Both in one direction are 1F1B of twice as many micro-batches, which are each backbone's in turn; one behind the other are two steps.
TEST(Bidirectional, IsShorterThanBothInOneDirection) {
  for (const int actors : {2, 4, 6, 8})
    for (const int microbatches : {2, 4, 8, 16}) {
      SCOPED_TRACE(concat(actors, " actors, ", microbatches, " micro-batches"));
      const Schedule table = opposite(actors, microbatches);
      const double time = time_of(table, shape_of(table));
      EXPECT_LT(time, time_of_1f1b(actors, 2 * microbatches));
      EXPECT_LT(time, 2 * time_of_1f1b(actors, microbatches));
      EXPECT_GE(time, 6.0 * microbatches);  // all of an actor's work
      if (microbatches >= actors) {
        EXPECT_NEAR(time, 6.0 * microbatches + 2 * (actors - 2), 1e-9);
      }
    }
  // The figures of docs/filling.md.
  const Schedule table = opposite(4, 4);
  EXPECT_EQ(time_of(table, shape_of(table)), 28);
  EXPECT_EQ(time_of_1f1b(4, 8), 33);
  EXPECT_EQ(2 * time_of_1f1b(4, 4), 42);
  // The interleaved table of the same work has both chunks go down.
  const Schedule down = make_schedule("interleaved-1f1b", {.actors = 4, .microbatches = 4, .chunks = 2});
  EXPECT_GT(time_of(down, shape_of(table)), 28);
}

// A stage's forward takes times[0] in one backbone and times[1] in the other, its backward twice that.
TableTime time_with(const Schedule& table, const std::vector<double>& times) {
  TableCosts costs;
  const int actors = static_cast<int>(table.actors.size());
  for (int stage = 0; stage < 2 * actors; ++stage) {
    costs.stages.push_back(uniform_costs(1, {}, times[static_cast<std::size_t>(stage / actors)]).stages[0]);
    costs.stages.back().live = 1;
  }
  return time_table(table, shape_of(table), costs);
}

Schedule balanced(int actors, int microbatches, const std::vector<double>& times) {
  return make_schedule("bidirectional", {.actors = actors, .microbatches = microbatches, .chunks = 2, .balance = times});
}

// No order of any backbones takes less than an actor's work, nor than the last stage of the longer one with the ways there and back.
TEST(Bidirectional, OfUnequalBackbonesIsTheLeastThereIsForTwoActors) {
  for (const std::vector<double>& times : {std::vector<double>{2, 1}, {4, 1}, {3, 2}, {1, 3}, {10, 1}, {5, 4}, {1, 1}})
    for (const int microbatches : {1, 2, 3}) {
      SCOPED_TRACE(concat(times[0], " ", times[1], ", ", microbatches, " micro-batches"));
      const double least = std::max(3 * microbatches * (times[0] + times[1]), 3 * std::max(times[0], times[1]) * (microbatches + 1));
      EXPECT_DOUBLE_EQ(time_with(balanced(2, microbatches, times), times).makespan, least);
    }
}

TEST(Bidirectional, OfUnequalBackbonesIsShorterThanTheOrderForEqualOnes) {
  for (const int actors : {2, 4, 6, 8})
    for (const int microbatches : {2, 4, 8, 16})
      for (const std::vector<double>& times : {std::vector<double>{2, 1}, {1, 4}, {3, 2}, {5, 4}, {1, 1}}) {
        SCOPED_TRACE(concat(actors, " actors, ", microbatches, " micro-batches, ", times[0], " ", times[1]));
        const Schedule table = balanced(actors, microbatches, times);
        validate(table, shape_of(opposite(actors, microbatches)), microbatches);
        const TableTime time = time_with(table, times), alike = time_with(opposite(actors, microbatches), times);
        EXPECT_LE(time.makespan, alike.makespan);
        if (microbatches >= actors && std::max(times[0], times[1]) >= 1.5 * std::min(times[0], times[1])) {
          EXPECT_LT(time.makespan, alike.makespan);
        }
        for (const double live : time.peak_live) EXPECT_LE(live, 2 * actors);
      }
  // The figures of docs/filling.md.
  EXPECT_EQ(time_with(opposite(4, 4), {2, 1}).makespan, 48);
  EXPECT_EQ(time_with(balanced(4, 4, {2, 1}), {2, 1}).makespan, 43);
  EXPECT_EQ(time_with(opposite(4, 8), {1, 4}).makespan, 150);
  EXPECT_EQ(time_with(balanced(4, 8, {1, 4}), {1, 4}).makespan, 139);
}

// A frozen stage in front feeds both; it stands where actors wait in the step before.
TEST(Bidirectional, IsFilled) {
  const Schedule step = opposite(4, 4), filled = opposite(4, 4, 3, {0.5, 0.5});
  const StageShape shape = shape_of(filled);
  EXPECT_EQ(shape.predecessors[2], (std::vector<std::int32_t>{1}));
  EXPECT_EQ(shape.predecessors[6], (std::vector<std::int32_t>{1}));
  EXPECT_NO_THROW(validate(filled, shape, 12));
  const double time = time_of(step, shape_of(step));
  EXPECT_NEAR(time_of(filled, shape), 1 + 3 * time, 1e-9);  // 4 forwards of 1 on 4 actors ahead of all
  const Timeline timeline =
      timeline_of(step, shape_of(step), uniform_costs(step), time_table(step, shape_of(step), uniform_costs(step), {.record = true}));
  EXPECT_NEAR(fill_idle(timeline, {{4, 4, 4}}).placed, 12, 1e-9);
}

TEST(Bidirectional, MistakesAreNamed) {
  EXPECT_EQ(message_of([] { make_schedule("bidirectional", {.actors = 3, .microbatches = 2, .chunks = 2}); }),
            "bidirectional needs an even number of actors, not 3\n"
            "  two directions share the actors; a middle actor would hold one stage for both\n  hint: 2 or 4 actors");
  EXPECT_EQ(message_of([] { make_schedule("bidirectional", {.actors = 2, .microbatches = 2}); }),
            "bidirectional gives each actor two stages, not 1\n"
            "  its stages go down the actors and come back: actor r of p has stages r and 2p-1-r\n  hint: chunks 2");
  EXPECT_EQ(
      message_of([] { validate(opposite(2, 2), chain(4)); }),
      "bidirectional: stage 1 feeds stage 2, which the table has beside it, not behind it\n"
      "  hint: use a schedule for a chain of stages, or a model whose stages feed each other as the table's do: for bidirectional, of "
      "two: --set model.name=latent_diffusion --set backbones=2");
}

}  // namespace
}  // namespace penstock
