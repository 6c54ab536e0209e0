// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>

#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

// The smallest largest load of all cuts into as many stages as there are devices.
double least_load(const std::vector<double>& forward, const std::vector<double>& speeds, std::size_t begin = 0, std::size_t stage = 0) {
  if (stage + 1 == speeds.size()) {
    double load = 0;
    for (std::size_t i = begin; i < forward.size(); ++i) load += 3 * forward[i] / speeds[stage];
    return load;
  }
  double best = std::numeric_limits<double>::infinity(), load = 0;
  for (std::size_t end = begin + 1; end + (speeds.size() - stage - 1) <= forward.size(); ++end) {
    load += 3 * forward[end - 1] / speeds[stage];
    best = std::min(best, std::max(load, least_load(forward, speeds, end, stage + 1)));
  }
  return best;
}

TEST(Bapipe, DevicesOfUnequalSpeedsHaveTheSmallestLargestLoad) {
  for (std::uint64_t seed = 0; seed < test::rounds(50u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<double> forward(12), speeds(4);
    for (double& f : forward) f = std::uniform_real_distribution<double>(0.5, 2)(random);
    for (double& s : speeds) s = random() % 2 == 0 ? 1 : 2;
    PlanProblem problem = problem_of(chain_graph(forward), uniform_cluster(4, 1e9), 64);
    for (std::size_t d = 0; d < 4; ++d) problem.cluster.devices[d].speed = speeds[d];
    const Plan plan = make_plan("bapipe", problem);
    if (plan.stages.size() < 4) continue;  // fewer were faster
    EXPECT_NEAR(plan.bottleneck, least_load(forward, speeds), 1e-9);
  }
}

TEST(Bapipe, ADeviceOfTwiceTheSpeedHasTwiceTheNodes) {
  PlanProblem problem = problem_of(chain_graph(std::vector<double>(12, 1)), uniform_cluster(2, 1e9), 32);
  problem.cluster.devices[1].speed = 2;
  const Plan plan = make_plan("bapipe", problem);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].nodes.size(), 4u);
  EXPECT_EQ(plan.bottleneck, 12);
}

TEST(Bapipe, LongTransfersRunFurtherAheadIfItFits) {
  PlanProblem problem = problem_of(chain_graph({1, 1, 1, 1}), uniform_cluster(4, 1e9, 1), 8);
  const Plan ahead = make_plan("bapipe", problem);
  EXPECT_DOUBLE_EQ(ahead.predicted_time, 39);
  EXPECT_EQ(ahead.peak_bytes, (std::vector<double>{7, 5, 3, 1}));
  for (ClusterDevice& device : problem.cluster.devices) device.memory = 4;
  const Plan less = make_plan("bapipe", problem);
  EXPECT_EQ(less.peak_bytes, (std::vector<double>{4, 3, 2, 1}));
  EXPECT_DOUBLE_EQ(less.predicted_time, 49);
  problem.cluster = uniform_cluster(4, 1e9);
  EXPECT_EQ(make_plan("bapipe", problem).peak_bytes, (std::vector<double>{4, 3, 2, 1}));  // nothing to hide
}

TEST(Bapipe, CutsMoveToSmallActivations) {
  PlanGraph graph = chain_graph({1, 1, 1, 1, 1, 1}, 1);
  graph.edges[2].bytes = 100;  // in the middle
  const Plan plan = make_plan("bapipe", problem_of(graph, uniform_cluster(2, 1), 32));
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_NE(plan.stages[0].nodes.size(), 3u);
  EXPECT_EQ(plan.bottleneck, 12);
}

TEST(Bapipe, BranchesAreCutAsALine) {
  for (std::uint64_t seed = 0; seed < test::rounds(50u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    PlanProblem problem = random_problem(
        random, {.nodes = 8, .devices = 4, .series_parallel = random() % 2 == 0, .unequal = true, .ways = true, .batches = true});
    for (ClusterDevice& device : problem.cluster.devices) device.memory = 1e6 * std::uniform_real_distribution<double>(120, 400)(random);
    Plan plan;
    const std::string error = message_of([&] { plan = make_plan("bapipe", problem); });  // checks the plan
    if (error != "no error") {
      EXPECT_NE(error.find("the smallest memory of each device that would do is"), std::string::npos) << error;
      continue;
    }
    for (std::size_t d = 0; d < plan.peak_bytes.size(); ++d) EXPECT_LE(plan.peak_bytes[d], problem.cluster.devices[d].memory * (1 + 1e-9));
  }
}

TEST(Bapipe, SaysTheSmallestMemory) {
  PlanProblem problem = problem_of(chain_graph({1, 1, 1, 1}), uniform_cluster(2, 1e9, 0, 2.5), 8);
  EXPECT_EQ(message_of([&] { make_plan("bapipe", problem); }),
            "no plan of chain fits into devices of 2 B\n"
            "  the smallest memory of each device that would do is 3 B (3 bytes)\n"
            "  hint: take devices with more memory, or more of them");
  for (ClusterDevice& device : problem.cluster.devices) device.memory = 3;
  EXPECT_EQ(make_plan("bapipe", problem).peak_bytes, (std::vector<double>{2, 3}));
}

TEST(Bapipe, NeedsCostsOfOneDevice) {
  PlanProblem problem = problem_of(chain_graph({1, 1}), uniform_cluster(2, 1e9), 8);
  problem.graph.nodes[1].costs[0].degree = 2;
  EXPECT_EQ(message_of([&] { make_plan("bapipe", problem); }),
            "node \"n1\" of chain has no costs of one device\n"
            "  hint: take a planner that shares micro-batches between devices: piper or best");
}

}  // namespace
}  // namespace penstock::test
