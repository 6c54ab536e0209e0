// SPDX-License-Identifier: Apache-2.0
// DIP's tables as schedules of stages; tables that are the same for every batch.
#include "batch/module_plan.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "batch/static_modules.h"
#include "support/errors.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::message_of;
using test::Random;

// A rank takes 1 for each image in a round, and `backbone` for a text.
ModuleProblem with_images(int ranks, const std::vector<std::int64_t>& images, std::int64_t part, double backbone) {
  std::vector<BatchShape> shapes;
  for (const std::int64_t n : images) shapes.push_back({.samples = 1, .input = 1, .images = n, .part = part});
  return module_problem(shapes, {.fixed = backbone - 2}, ranks, 1, 1);
}

double makespan_of(const ModuleProblem& problem, const Schedule& schedule) {
  const std::int32_t stages = static_cast<std::int32_t>(shape_of(problem).predecessors.size());
  const std::int32_t in_part = problem.ranks * problem.part_rounds, text = stages - problem.ranks * problem.backbone_rounds;
  const auto forward = [&](std::int32_t stage, std::int32_t m) {
    const ModuleMicroBatch& micro_batch = problem.micro_batches.at(static_cast<std::size_t>(m));
    if (stage >= text) return micro_batch.backbone;
    const auto part = static_cast<std::size_t>(stage / in_part);
    return part < micro_batch.parts.size() ? micro_batch.parts[part] : 0;
  };
  return time_table(schedule, shape_of(problem), costs_by_forward(stages, problem.micro_batches.size(), forward)).makespan;
}

TEST(ModulePlan, Costs) {
  const ModuleCosts costs{.part_fixed = 3, .images = 2, .fixed = 1, .linear = 4, .quadratic = 8};
  EXPECT_EQ(costs.part(4), 5);
  EXPECT_EQ(costs.text({.samples = 3, .input = 8}), 1 + 3 * (2 + 8));
  EXPECT_EQ(part_of({.part_fixed = 1, .images = 1}, 100), 16);  // 16/17 are 95 % of 100/101
  EXPECT_EQ(part_of({.part_fixed = 0, .images = 1}, 100), 1);
  EXPECT_EQ(part_of({.part_fixed = 1, .images = 1}, 0), 1);
}

TEST(ModulePlan, StagesOfPartsThenOfTexts) {
  const ModuleProblem problem = with_images(2, {3, 0}, 2, 2);
  EXPECT_EQ(shape_of(problem).predecessors, (std::vector<std::vector<std::int32_t>>{{}, {0}, {}, {2}, {1, 3}, {4}}));
  EXPECT_EQ(shape_of(problem).idle,
            (std::vector<std::vector<bool>>{{false, true}, {false, true}, {false, true}, {false, true}, {false, false}, {false, false}}));
  EXPECT_EQ(actor_of_stage(schedule_of(problem, search_modules(problem).table)), (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1}));
  ModuleProblem folded = problem;
  folded.folded = true;
  EXPECT_EQ(actor_of_stage(schedule_of(folded, search_modules(folded).table)), (std::vector<std::int32_t>{0, 1, 0, 1, 1, 0}));
}

// Tables of several rounds, there and back, and of split backwards too: valid, as fast as the search says, and none below the bound.
TEST(ModulePlan, SchedulesAreTheirTables) {
  constexpr unsigned kSeed = 71;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(40); ++round) {
    std::vector<std::int64_t> images;
    for (int m = test::draw(random, 1, 5); m > 0; --m) images.push_back(test::draw(random, 0, 5));
    ModuleProblem problem = with_images(test::draw(random, 1, 4), images, test::draw(random, 1, 3), test::draw(random, 2, 5));
    problem.part_rounds = test::draw(random, 1, 3);
    problem.backbone_rounds = test::draw(random, 1, 3);
    problem.folded = test::coin(random, 0.5);
    problem.split = test::coin(random, 0.5);
    const ModuleResult found = search_modules(problem, {.rollouts = 30, .nodes = 300});
    const Schedule schedule = schedule_of(problem, found.table);
    const std::string where = concat("seed ", kSeed, ", round ", round);
    EXPECT_NO_THROW(validate(schedule, shape_of(problem), static_cast<int>(images.size()))) << where;
    EXPECT_EQ(makespan_of(problem, schedule), found.table.makespan) << where;
    EXPECT_LE(found.lower_bound, found.table.makespan) << where;
  }
}

// The same images for each micro-batch: a table for all batches is as good as one for each, if it has parts.
TEST(StaticModules, TimesEachBatch) {
  const std::vector<ModuleProblem> batches = {with_images(2, {2, 2, 2, 2}, 8, 2), with_images(2, {0, 0, 0, 0}, 8, 2)};
  const StaticTable best = best_static_table(batches, 0);
  ASSERT_EQ(best.times.size(), 2);
  EXPECT_GE(best.times[0], 4 * 3 * (2 + 2));  // the work of a rank
  EXPECT_GE(best.times[1], 4 * 3 * 2);
  EXPECT_LT(best.times[1], best.times[0]);
  EXPECT_EQ(message_of([&] { best_static_table({batches[0], with_images(2, {1}, 8, 2)}, 0); }),
            "the batches differ in their ranks or micro-batches, or have several rounds\n  hint: one table is for one number of each");
}

// Images drawn for each micro-batch, 0 to 8: planned for each batch at least 15 % below the best table for all, and near the bound.
TEST(StaticModules, PlannedBatchesAreFaster) {
  constexpr unsigned kSeed = 72;
  Random random(kSeed);
  std::vector<ModuleProblem> whole;
  double planned = 0, bound = 0;
  for (int batch = 0; batch < 10; ++batch) {
    std::vector<std::int64_t> images;
    for (int m = 0; m < 4; ++m) images.push_back(test::draw(random, 0, 8));
    whole.push_back(with_images(4, images, 8, 4));
    ModuleProblem problem = with_images(4, images, 1, 4);
    problem.folded = problem.split = true;
    const ModuleResult found = search_modules(problem);
    planned += found.table.makespan;
    bound += found.lower_bound;
  }
  const StaticTable best = best_static_table(whole, 0);
  EXPECT_LE(planned, 0.85 * best.total()) << best.name << ", seed " << kSeed;
  EXPECT_LE(planned, 1.05 * bound) << "seed " << kSeed;
}

// A rank holds no more than it may; where backwards are split, until W.
TEST(ModulePlan, KeepsTheMemoryRule) {
  constexpr int kMost = 6;
  for (const bool split : {false, true}) {
    ModuleProblem problem = with_images(2, {2, 1, 2}, 1, 2);
    problem.folded = problem.split = split;
    problem.most_live = kMost;
    for (const std::vector<ModuleRun>& rank : search_modules(problem, {.rollouts = 200}).table.ranks) {
      int live = 0;
      for (const ModuleRun& run : rank) {
        live += run.kind == Kind::F ? 1 : run.kind == Kind::I ? 0 : -1;
        EXPECT_LE(live, kMost);
      }
    }
  }
}

}  // namespace
}  // namespace penstock
