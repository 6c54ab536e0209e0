// SPDX-License-Identifier: Apache-2.0
// Every planner ends soon after its time, however large the problem: a clock that goes on by a second each time it is read makes what the
// planners do before they end a matter of how often they look at it, and not of the machine.
#include "cost/time_limit.h"

#include <gtest/gtest.h>

#include "base/text.h"
#include "cost/cost_model.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/sample.h"

namespace penstock::test {
namespace {

TEST(TimeLimit, ReadsTheClockOnceInSoMuchWork) {
  int looks = 0;
  TimeLimit limit(3, [&] { return static_cast<double>(looks++); });
  EXPECT_EQ(looks, 1);
  for (std::int64_t work = 0; work < TimeLimit::kWork; work += TimeLimit::kWork / 4) EXPECT_FALSE(limit.is_over(TimeLimit::kWork / 4));
  EXPECT_EQ(looks, 2);
  EXPECT_NEAR(limit.share_used(), 1 / 3.0, 1e-9);
  EXPECT_FALSE(limit.is_over());
  EXPECT_TRUE(limit.is_over());
  EXPECT_EQ(limit.share_used(), 1);
  EXPECT_TRUE(limit.is_over(0));
  EXPECT_EQ(limit.left(), 0);
  EXPECT_EQ(looks, 4);  // what is over stays so without a look
  TimeLimit none;
  EXPECT_FALSE(none.is_over());
  EXPECT_EQ(none.share_used(), 0);
}

struct Size {
  int nodes, devices;
};

// Two levels of links, replicas; every third has memory that binds.
PlanProblem large_problem(const Size& size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  PlanProblem problem = random_problem(
      random, {.nodes = size.nodes, .devices = size.devices, .batches = seed % 2 == 0, .replicas = seed % 4 != 3, .updates = true});
  if (size.devices % 8 == 0) problem.cluster.levels = {{8, {5e-6, 1e11}}, {size.devices / 8, {1e-5, 1e10}}};
  if (seed % 3 == 2)
    for (ClusterDevice& device : problem.cluster.devices) device.memory = 4e9;
  problem.samples = 0;
  problem.graph.samples = 8 * size.devices;
  return problem;
}

TEST(TimeLimit, EveryPlannerLooksAtIt) {
  constexpr int kLooksBeyond = 60;  // planners that best asks make limits of their own
  test::Sample sample(1);
  for (const Size size : {Size{64, 16}, Size{1000, 256}, Size{5000, 10000}})
    for (const PlannerInfo& planner : planners())
      for (const double seconds : {0.5, 20.0}) {
        if (!sample.takes()) continue;
        const std::uint64_t seed = static_cast<std::uint64_t>(size.nodes + size.devices + static_cast<int>(seconds));
        SCOPED_TRACE(concat(planner.name, " of ", size.nodes, " nodes on ", size.devices, " devices, ", seconds, " looks, seed ", seed));
        const PlanProblem problem = large_problem(size, seed);
        double looks = 0;
        Plan plan;
        const std::string why =
            message_of([&] { plan = make_plan(planner.name, problem, {.seconds = seconds, .clock = [&] { return looks++; }}); });
        EXPECT_LE(looks, seconds + kLooksBeyond);
        if (planner.name == "best" && seed % 3 != 2) {
          EXPECT_EQ(why, "no error");
        }
        if (why == "no error") {
          EXPECT_GE(plan.predicted_time, plan.lower_bound * (1 - 1e-9));
        }
      }
}

// Wherever in a search the time ends, also between finding a plan and reading it: there is a whole plan, or it is said that there is none.
TEST(TimeLimit, AnyMomentLeavesAWholePlanOrNone) {
  for (const Size size : {Size{12, 9}, Size{16, 21}, Size{24, 45}})
    for (const PlannerInfo& planner : planners())
      for (int last = 0; last < 30; ++last) {
        SCOPED_TRACE(concat(planner.name, " of ", size.nodes, " nodes on ", size.devices, " devices, ", last, " looks"));
        const PlanProblem problem = large_problem(size, 1);
        double looks = 0;
        Plan plan;
        const std::string why =
            message_of([&] { plan = make_plan(planner.name, problem, {.seconds = 1.0 * last, .clock = [&] { return looks++; }}); });
        if (why != "no error") continue;
        std::size_t nodes = 0;
        for (const PlanStage& stage : plan.stages) nodes += stage.nodes.size();
        EXPECT_EQ(nodes, problem.graph.nodes.size());
      }
}

}  // namespace
}  // namespace penstock::test
