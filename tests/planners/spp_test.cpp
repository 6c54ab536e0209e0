// SPDX-License-Identifier: Apache-2.0
#include "planners/spp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/numbers.h"
#include "cost/evaluate.h"
#include "planners/improve_plan.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

// The objective that PRM minimises, for stages as they are.
double bottleneck_of(const PlanProblem& problem, const std::vector<PlanStage>& stages) {
  const PlanFigures figures = figures_of(problem, stages);
  double bottleneck = 0;
  for (const StageFigures& s : figures.stages)
    bottleneck = std::max(bottleneck, s.forward + s.backward + s.all_reduce / figures.microbatches);
  for (const StageLink& link : figures.links) bottleneck = std::max(bottleneck, link.forward);
  return bottleneck;
}

// The least bottleneck of all cuts of nodes from `node` on over devices of the line from `first` on, by the number of stages.
void try_all(const PlanProblem& problem, const std::vector<int>& line, std::vector<PlanStage>& stages, int node, std::size_t first,
             std::vector<double>& least) {
  const int n = static_cast<int>(problem.graph.nodes.size());
  if (node == n && first == line.size()) {
    double& best = least[stages.size() - 1];
    best = std::min(best, bottleneck_of(problem, stages));
  }
  for (int end = node + 1; end <= n; ++end)
    for (std::size_t last = first + 1; last <= line.size(); ++last) {
      PlanStage stage;
      for (int i = node; i < end; ++i) stage.nodes.push_back(i);
      stage.devices.assign(line.begin() + static_cast<std::ptrdiff_t>(first), line.begin() + static_cast<std::ptrdiff_t>(last));
      stages.push_back(stage);
      try_all(problem, line, stages, end, last, least);
      stages.pop_back();
    }
}

PlanProblem random_chain(std::mt19937_64& random, int nodes, int devices) {
  PlanProblem problem = random_problem(random, {.nodes = nodes, .devices = devices, .unequal = true, .replicas = true});
  problem.graph.edges.clear();
  for (int i = 0; i + 1 < nodes; ++i)
    problem.graph.edges.push_back({i, i + 1, problem.graph.nodes[static_cast<std::size_t>(i)].output_bytes});
  return problem;
}

TEST(Spp, PrmIsTheBestOfAllCuts) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int nodes = 3 + static_cast<int>(random() % 4), devices = 2 + static_cast<int>(random() % 3);
    const PlanProblem problem = random_chain(random, nodes, devices);
    std::vector<int> line(static_cast<std::size_t>(devices));
    std::iota(line.begin(), line.end(), 0);
    std::shuffle(line.begin(), line.end(), random);
    const ChainView view = make_chain_view(problem, choices_of(problem.graph, 1, false, 1), 1, nodes, devices);
    const std::vector<SppCut> cuts = spp_cuts(view, line, no_limit());
    std::vector<double> least(static_cast<std::size_t>(nodes), kInfinity);
    std::vector<PlanStage> stages;
    try_all(problem, line, stages, 0, 0, least);
    ASSERT_EQ(cuts.size(), static_cast<std::size_t>(std::min(nodes, devices)));
    for (std::size_t s = 0; s < cuts.size(); ++s) {
      SCOPED_TRACE(testing::Message() << s + 1 << " stages");
      ASSERT_EQ(cuts[s].stages.size(), s + 1);
      EXPECT_NEAR(cuts[s].bottleneck, least[s], 1e-9 * least[s]);
      EXPECT_NEAR(bottleneck_of(problem, cuts[s].stages), least[s], 1e-9 * least[s]);
    }
  }
}

TEST(Spp, IslandsDoNotAlternate) {
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int devices = 4 + static_cast<int>(random() % 9), islands = 2 + static_cast<int>(random() % 2);
    std::vector<int> island(static_cast<std::size_t>(devices));
    for (std::size_t d = 0; d < island.size(); ++d) island[d] = static_cast<int>(d) % islands;
    std::shuffle(island.begin(), island.end(), random);
    ClusterSpec cluster = uniform_cluster(devices, 1e9);
    for (int a = 0; a < devices; ++a)
      for (int b = a + 1; b < devices; ++b) {
        const bool together = island[static_cast<std::size_t>(a)] == island[static_cast<std::size_t>(b)];
        cluster.between[{a, b}] = {0, (together ? 5e9 : 1e9) * std::uniform_real_distribution<double>(0.8, 1.2)(random)};
      }
    const std::vector<int> order = device_order(cluster, 1e6, no_limit());
    ASSERT_EQ(order.size(), island.size());
    int changes = 0;
    for (std::size_t i = 1; i < order.size(); ++i)
      changes += island[static_cast<std::size_t>(order[i])] != island[static_cast<std::size_t>(order[i - 1])];
    EXPECT_EQ(changes, islands - 1);
  }
}

TEST(Spp, EqualDevicesKeepTheirOrder) {
  ClusterSpec cluster = uniform_cluster(8, 1e9);
  const std::vector<int> line = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(device_order(cluster, 1e6, no_limit()), line);
  cluster.levels = {{4, {0, 1e10}}, {2, {0, 1e9}}};
  EXPECT_EQ(device_order(cluster, 1e6, no_limit()), line);
}

// Devices are equal, as the paper takes them; links are not.
TEST(Spp, NearTheBestPlanThereIs) {
  double ratios = 0;
  constexpr int kProblems = 12;
  for (std::uint64_t seed = 0; seed < kProblems; ++seed) {
    std::mt19937_64 random(seed);
    const int nodes = 3 + static_cast<int>(random() % 4), devices = 2 + static_cast<int>(random() % 3);
    PlanProblem problem = random_chain(random, nodes, devices);
    for (ClusterDevice& device : problem.cluster.devices) device.speed = 1;
    ratios += make_plan("spp", problem).predicted_time / make_plan("exact", problem, {.seconds = 600}).predicted_time;
  }
  EXPECT_LE(ratios / kProblems, 1.1);
}

TEST(Spp, BranchesMemoryAndSingleDevices) {
  expect_plans_or_least_memory("spp", {.nodes = 8, .replicas = true}, 60);
}

TEST(DeviceOrder, EqualLinksHaveNone) {
  std::vector<int> order(2000);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_EQ(device_order(uniform_cluster(2000, 1e9), 1, no_limit()), order);
}

TEST(DeviceOrder, CutsOfSoManyDevicesTakeTooLong) {
  ClusterSpec cluster = uniform_cluster(600, 1e9);
  cluster.between[{0, 1}] = {0, 1e10};
  EXPECT_EQ(message_of([&] { device_order(cluster, 1, no_limit()); }),
            "spp orders at most 512 devices of unequal links; there are 600\n  hint: planner best asks the others");
}

}  // namespace
}  // namespace penstock::test
