// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <utility>

#include "base/numbers.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

// The smallest largest load of stages and links, of all orders of the devices and all cuts. Each edge takes `link` seconds forward.
double least_load(const std::vector<double>& forward, const std::vector<double>& speeds, double link) {
  std::vector<std::size_t> order(speeds.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  double best = std::numeric_limits<double>::infinity();
  do {
    for (unsigned borders = 0; borders < 1U << (forward.size() - 1); ++borders) {
      if (std::popcount(borders) + 1U != speeds.size()) continue;
      double largest = link, load = 0;
      std::size_t stage = 0;
      for (std::size_t i = 0; i < forward.size(); ++i) {
        load += 3 * forward[i] / speeds[order[stage]];
        if (i + 1 < forward.size() && (borders >> i & 1U) == 0) continue;
        largest = std::max(largest, std::exchange(load, 0));
        ++stage;
      }
      best = std::min(best, largest);
    }
  } while (std::ranges::next_permutation(order).found);
  return best;
}

TEST(Hetpipe, OneWorkerIsTheBestOfAllOrdersAndCuts) {
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    std::vector<double> forward(4 + random() % 5), speeds(4);
    for (double& f : forward) f = std::uniform_real_distribution<double>(0.5, 2)(random);
    for (double& s : speeds) s = 1.0 + static_cast<double>(random() % 3);
    const double link = random() % 2 == 0 ? 0 : 3;
    PlanProblem problem = problem_of(chain_graph(forward, 1e9), uniform_cluster(4, link > 0 ? 1e9 / link : kInfinity), 64);
    for (std::size_t d = 0; d < 4; ++d) problem.cluster.devices[d].speed = speeds[d];
    problem.replicas = false;
    const Plan plan = make_plan("hetpipe", problem);
    ASSERT_EQ(plan.stages.size(), 4u);
    EXPECT_NEAR(plan.bottleneck, least_load(forward, speeds, link), 1e-9);
  }
}

// Two fast and two slow devices: two workers of one of each, whose slow stages have a third of the nodes.
TEST(Hetpipe, WorkersAreAlike) {
  PlanProblem problem = problem_of(chain_graph(std::vector<double>(12, 1)), uniform_cluster(4, 1e9), 64);
  for (const std::size_t fast : {1, 3}) problem.cluster.devices[fast].speed = 2;
  const Plan plan = make_plan("hetpipe", problem);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].nodes.size() + plan.stages[1].nodes.size(), 12u);
  for (const PlanStage& stage : plan.stages) {
    const bool is_fast = stage.devices == std::vector<int>{1, 3};
    EXPECT_EQ(stage.devices, is_fast ? (std::vector<int>{1, 3}) : (std::vector<int>{0, 2}));
    EXPECT_EQ(stage.nodes.size(), is_fast ? 8u : 4u);
  }
}

// With one worker of each kind alone, the slowest would hold up the others; and no plan is slower than equal stages.
TEST(Hetpipe, BeatsEqualStagesOnUnequalDevices) {
  PlanProblem problem = problem_of(chain_graph(std::vector<double>(9, 1)), uniform_cluster(3, 1e9), 64);
  problem.cluster.devices[0].speed = 0.5;
  problem.replicas = false;
  const Plan plan = make_plan("hetpipe", problem);
  EXPECT_LE(plan.bottleneck, 3 * 4.0);  // equal stages: 3 nodes at half the speed, 18
}

TEST(Hetpipe, KeepsToTheMemoryOfEachDevice) {
  PlanProblem problem = problem_of(chain_graph(std::vector<double>(8, 1)), uniform_cluster(4, 1e9), 64);
  for (std::size_t d = 0; d < 4; ++d) problem.cluster.devices[d].memory = d == 2 ? 4 : 24;
  problem.replicas = false;
  const Plan plan = make_plan("hetpipe", problem);
  for (std::size_t d = 0; d < 4; ++d) EXPECT_LE(plan.peak_bytes[d], problem.cluster.devices[d].memory) << d;
  for (ClusterDevice& device : problem.cluster.devices) device.memory = 0.5;
  EXPECT_NE(message_of([&] { make_plan("hetpipe", problem); }), "no error");
}

}  // namespace
}  // namespace penstock::test
