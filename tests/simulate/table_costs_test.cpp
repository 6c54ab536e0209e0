// SPDX-License-Identifier: Apache-2.0
// Costs of tables from profiles.
#include "simulate/table_costs.h"

#include <gtest/gtest.h>

#include "support/errors.h"

namespace penstock {
namespace {

using test::message_of;

TaskCost task(Kind kind, std::int32_t stage, std::int32_t stages, double seconds) {
  TaskCost cost;
  cost.kind = kind;
  cost.stage = stage;
  cost.stages = stages;
  cost.busy = Sample{seconds, 0, 1};
  return cost;
}

double time_of(const TableCosts& costs, std::size_t stage, Kind kind) {
  return costs.stages[stage].time[static_cast<std::size_t>(kind)];
}

Costs measured() {
  Costs costs;
  costs.model = "gpt, f32: layers 8";
  costs.tasks = {task(Kind::F, 0, 4, 1), task(Kind::F, 1, 4, 2), task(Kind::F, 3, 4, 3), task(Kind::B, 0, 4, 4),
                 task(Kind::B, 1, 4, 5), task(Kind::B, 3, 4, 6), task(Kind::F, 0, 2, 9), task(Kind::F, -1, 4, 8)};
  return costs;
}

TEST(TableCosts, ByKindAndStage) {
  const Schedule schedule = make_schedule("interleaved-1f1b", {.actors = 2, .microbatches = 4, .chunks = 2});
  const TableCosts costs = table_costs_of(measured(), schedule, {});
  ASSERT_EQ(costs.stages.size(), 4u);
  EXPECT_EQ(time_of(costs, 0, Kind::F), 1);
  EXPECT_EQ(time_of(costs, 2, Kind::F), 2);  // equal to stage 1's: one task
  EXPECT_EQ(time_of(costs, 3, Kind::B), 6);
  EXPECT_EQ(costs.stages[0].live, 0.5);
}

// As a program's tasks: in a step, else what comes nearest; of one device alone.
TEST(TableCosts, UnderTheConditionsOfTheBackend) {
  Costs costs = measured();
  for (TaskCost& cost : costs.tasks) {
    cost.alone = Sample{0.5, 0, 1};
    cost.beside["gloo"] = Sample{7, 0, 1};
  }
  const Schedule schedule = make_schedule("1f1b", {.actors = 4});
  EXPECT_EQ(time_of(table_costs_of(costs, schedule, {.backend = "gloo"}), 0, Kind::F), 7);
  EXPECT_EQ(time_of(table_costs_of(costs, schedule, {.backend = "threads"}), 0, Kind::F), 1);
  EXPECT_EQ(time_of(table_costs_of(costs, schedule, {.which = Measured::alone}), 0, Kind::F), 0.5);
}

// The first stage sends no gradient on, so that its W is its whole backward: the file has that task once, under the kind measured first.
TEST(TableCosts, TasksThatAreEqualStandOnce) {
  Costs costs;
  costs.tasks = {task(Kind::F, 0, 3, 1), task(Kind::B, 0, 3, 4), task(Kind::F, 1, 3, 2),
                 task(Kind::B, 1, 3, 5), task(Kind::I, 1, 3, 3), task(Kind::W, 1, 3, 2.5)};
  const TableCosts split = table_costs_of(costs, make_schedule("zb-h1", {.actors = 3}), {});
  EXPECT_EQ(time_of(split, 0, Kind::I), 0);
  EXPECT_EQ(time_of(split, 0, Kind::W), 4);
  EXPECT_EQ(time_of(split, 2, Kind::I), 3);
  EXPECT_EQ(time_of(split, 2, Kind::W), 2.5);
  costs.tasks[1].kind = Kind::W;
  EXPECT_EQ(time_of(table_costs_of(costs, make_schedule("zb-h1", {.actors = 3}), {}), 0, Kind::I), 0);
  EXPECT_EQ(time_of(table_costs_of(costs, make_schedule("1f1b", {.actors = 3}), {}), 0, Kind::B), 4);
  costs.tasks.erase(costs.tasks.begin() + 4);  // stage 1's I: then it is what B has beside W
  EXPECT_EQ(time_of(table_costs_of(costs, make_schedule("zb-h1", {.actors = 3}), {}), 1, Kind::I), 2.5);
}

// An F that leaves its residuals to R stands for the whole one only where nothing else was measured.
TEST(TableCosts, TheLightForwardIsNotTheForward) {
  Costs costs;
  costs.tasks = {task(Kind::F, 0, 2, 1), task(Kind::R, 0, 2, 0.5), task(Kind::B, 0, 2, 4), task(Kind::F, 0, 2, 2), task(Kind::F, 1, 2, 3)};
  costs.tasks[0].light = costs.tasks[4].light = true;
  const TableCosts found = table_costs_of(costs, parse_schedule("0F0,0R0,0B0\n1F0,1R0,1B0\n", "again.csv"), {});
  EXPECT_EQ(time_of(found, 0, Kind::F), 2);
  EXPECT_EQ(time_of(found, 0, Kind::R), 0.5);
  costs.tasks.erase(costs.tasks.begin() + 3);
  EXPECT_EQ(time_of(table_costs_of(costs, make_schedule("1f1b", {.actors = 2}), {}), 1, Kind::F), 3);
  EXPECT_EQ(time_of(table_costs_of(costs, make_schedule("1f1b", {.actors = 2}), {}), 0, Kind::F), 1);
}

TEST(TableCosts, WhatIsMissingIsNamed) {
  const auto message = [](const Costs& costs, std::string_view name, const ScheduleOptions& options, const CostContext& context = {}) {
    return message_of([&] { table_costs_of(costs, make_schedule(name, options), context); });
  };
  EXPECT_EQ(
      message(measured(), "zb-h1", {.actors = 4}),
      "costs.json has no time for 8 of the tasks of zb-h1\n"
      "  missing, of a model cut into 4: I of stage 0, W of stage 0, I of stage 1, W of stage 1, I of stage 2, W of stage 2, and 2 more\n"
      "  it was measured for gpt, f32: layers 8, cut into 2, 4\n"
      "  hint: penstock profile CONFIG.toml --schedule zb-h1 --actors 4 --out costs.json measures them");
  EXPECT_EQ(
      message(measured(), "interleaved-1f1b", {.actors = 1, .microbatches = 1, .chunks = 2}, {.file = "my.json", .backend = "gloo"}),
      "my.json has no time for 2 of the tasks of interleaved-1f1b\n"
      "  missing, of a model cut into 2: B of stage 0, B of stage 1\n"
      "  it was measured for gpt, f32: layers 8, cut into 2, 4\n"
      "  hint: penstock launch -n 1 -- profile CONFIG.toml --schedule interleaved-1f1b --actors 1 --chunks 2 --backend gloo --out my.json "
      "measures them");
  EXPECT_NE(message({}, "1f1b", {.actors = 2}).find("cut into no stages"), std::string::npos);
}

}  // namespace
}  // namespace penstock
