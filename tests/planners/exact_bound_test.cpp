// SPDX-License-Identifier: Apache-2.0
// The time that plans claim no plan goes below, against what every planner finds.
#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

// Equal devices of two or three nodes, with links inside and between them; times of a few milliseconds.
ClusterSpec nodes_of_two(std::mt19937_64& random, int nodes) {
  const auto draw = [&](double least, double most) { return std::uniform_real_distribution<double>(least, most)(random); };
  ClusterSpec cluster = uniform_cluster(2 * nodes, 1e10);
  cluster.levels = {{2, {draw(0, 1e-4), draw(5e9, 2e10)}}, {nodes, {draw(0, 2e-3), draw(1e9, 5e9)}}};
  return cluster;
}

PlanProblem problem_with_latency(std::mt19937_64& random) {
  RandomProblem of{.nodes = 3 + static_cast<int>(random() % 4),
                   .devices = 2 + static_cast<int>(random() % 3),
                   .series_parallel = random() % 2 == 0,
                   .unequal = random() % 4 == 0,
                   .batches = random() % 3 == 0,
                   .replicas = random() % 2 == 0,
                   .updates = random() % 4 == 0};
  of.ways = of.nodes < 5 && random() % 3 == 0;
  PlanProblem problem = random_problem(random, of);
  switch (of.unequal ? 0 : random() % 3) {
    case 1:
      problem.cluster = uniform_cluster(of.devices, 1e10, 1e-3);
      break;
    case 2:
      problem.cluster = nodes_of_two(random, 2);
      break;
    default:
      break;
  }
  if (random() % 3 == 0)
    for (ClusterDevice& device : problem.cluster.devices)
      device.memory = 1e6 * std::uniform_real_distribution<double>(40, 120)(random) * of.nodes;
  return problem;
}

TEST(ExactBound, HoldsForThePlansOfAllPlanners) {
  int proven = 0, above = 0, ahead = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const PlanProblem problem = problem_with_latency(random);
    std::vector<Plan> plans;
    for (const PlannerInfo& planner : planners())
      if (!planner.equal_groups)
        message_of([&] { plans.push_back(make_plan(planner.name, problem, {.seconds = 600, .exact = false})); });  // some fit nowhere
    for (const Plan& claims : plans) {
      proven += claims.planner == "exact" && claims.optimal;
      above += claims.planner == "exact" && claims.lower_bound >= claims.predicted_time * (1 - 1e-9);
      for (const Plan& plan : plans) {
        EXPECT_LE(claims.lower_bound, plan.predicted_time * (1 + 1e-9)) << claims.planner << " of " << plan.planner;
        ahead += claims.planner == "exact" && plan.predicted_time < claims.predicted_time * (1 - 1e-6);
      }
    }
  }
  EXPECT_GT(proven, test::rounds(40));
  EXPECT_GE(above, test::rounds(5));  // a bound that is reached
  EXPECT_GT(ahead, 0);                // plans in another order than the exact planner's
}

}  // namespace
}  // namespace penstock::test
