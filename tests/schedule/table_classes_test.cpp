// SPDX-License-Identifier: Apache-2.0
// Tables whose micro-batches cost differently.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "penstock/table.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::coin;
using test::draw;
using test::Random;

StageCosts random_costs(Random& random) {
  StageCosts costs;
  for (double& time : costs.time) time = draw(random, 0, 9);
  costs.forward_bytes = draw(random, 0, 3);
  costs.backward_bytes = draw(random, 0, 3);
  costs.weight_bytes = draw(random, 0, 3);
  costs.live = draw(random, 1, 8);
  costs.kept = costs.live / 2;
  costs.parameters = draw(random, 0, 2);
  return costs;
}

void expect_equal(const TableTime& a, const TableTime& b) {
  EXPECT_EQ(a.start, b.start);
  EXPECT_EQ(a.end, b.end);
  EXPECT_EQ(a.makespan, b.makespan);
  EXPECT_EQ(a.busy, b.busy);
  EXPECT_EQ(a.peak_live, b.peak_live);
  EXPECT_EQ(a.peak_time, b.peak_time);
}

// Classes that cost the same are one class, in tables with everything.
TEST(TableClasses, EqualOnes) {
  constexpr unsigned kSeed = 71;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(200); ++round) {
    const StageShape shape = test::random_shape(random, {.most_stages = 4});
    const int microbatches = draw(random, 1, 5);
    Schedule schedule = test::random_schedule(random, shape, draw(random, 1, 4), microbatches, {.foreign_weight = 0.3, .replica = 0.2});
    schedule = coin(random, 0.5) ? test::with_extras(random, schedule, shape) : test::with_counts(random, schedule, shape);
    TableCosts alike, classes;
    for (std::size_t s = 0; s < shape.predecessors.size(); ++s) alike.stages.push_back(random_costs(random));
    for (int m = 0; m < microbatches; ++m) {
      classes.first.push_back(static_cast<std::int32_t>(classes.stages.size()));
      classes.stages.insert(classes.stages.end(), alike.stages.begin(), alike.stages.end());
    }
    const TableOptions options{.network = {.link = {.latency = 1, .bandwidth = 2}}};
    SCOPED_TRACE(round);
    expect_equal(time_table(schedule, shape, alike, options), time_table(schedule, shape, classes, options));
    EXPECT_EQ(dependency_bound(schedule, shape, alike, options), dependency_bound(schedule, shape, classes, options));
  }
}

// Ends of F and B on a chain without links, found by going over all actions until nothing changes.
std::map<Action, double> ends_of(const Schedule& schedule, const TableCosts& costs) {
  std::map<Action, double> ends;
  const int last = schedule.stages() - 1;
  for (bool changed = true; changed;) {
    changed = false;
    for (const auto& row : schedule.actors) {
      double free = 0;
      for (const Action& a : row) {
        double start = free;
        const auto needs = [&](std::int32_t stage, Kind kind) { start = std::max(start, ends[{stage, kind, a.microbatch}]); };
        if (a.kind == Kind::F && a.stage > 0) needs(a.stage - 1, Kind::F);
        if (a.kind == Kind::B) needs(a.stage, Kind::F);
        if (a.kind == Kind::B && a.stage < last) needs(a.stage + 1, Kind::B);
        free = start + costs.of(a.stage, a.microbatch).time[static_cast<std::size_t>(a.kind)];
        changed |= std::exchange(ends[a], free) != free;
      }
    }
  }
  return ends;
}

TEST(TableClasses, EachMicroBatchByItself) {
  constexpr unsigned kSeed = 72;
  Random random(kSeed);
  for (int round = 0; round < test::rounds(300); ++round) {
    const int stages = draw(random, 1, 5), microbatches = draw(random, 1, 7);
    const Schedule schedule = test::random_schedule(random, chain(stages), stages, microbatches, {.split = 0});
    TableCosts costs;
    for (int m = 0; m < microbatches; ++m) {
      costs.first.push_back(static_cast<std::int32_t>(costs.stages.size()));
      for (int s = 0; s < stages; ++s) costs.stages.push_back(random_costs(random));
    }
    for (StageCosts& stage : costs.stages) stage.parameters = 0;
    const TableTime time = time_table(schedule, chain(stages), costs);
    std::map<Action, double> ends = ends_of(schedule, costs);
    for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
      double live = 0, peak = 0;
      for (std::size_t i = 0; i < schedule.actors[a].size(); ++i) {
        const Action& action = schedule.actors[a][i];
        EXPECT_EQ(time.end[a][i], ends[action]) << "seed " << kSeed << ", round " << round;
        live += (action.kind == Kind::F ? 1 : -1) * costs.of(action.stage, action.microbatch).live;
        peak = std::max(peak, live);
      }
      EXPECT_NEAR(time.peak_live[a], peak, 1e-9 * peak) << "seed " << kSeed << ", round " << round;
    }
  }
}

}  // namespace
}  // namespace penstock
