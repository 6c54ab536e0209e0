// SPDX-License-Identifier: Apache-2.0
#include "planners/dapple.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

// A chain on two machines of `devices` / 2 each, the second one slower to reach.
PlanProblem random_chain(std::mt19937_64& random, int nodes, int devices, bool replicas) {
  PlanProblem problem = random_problem(random, {.nodes = nodes, .devices = devices, .replicas = replicas});
  problem.graph.edges.clear();
  for (int i = 0; i + 1 < nodes; ++i)
    problem.graph.edges.push_back({i, i + 1, problem.graph.nodes[static_cast<std::size_t>(i)].output_bytes});
  const double between = std::uniform_real_distribution<double>(1e9, 10e9)(random);
  problem.cluster.levels = {{devices / 2, {5e-6, 50e9}}, {2, {20e-6, between}}};
  return problem;
}

double latency_of(const PlanProblem& problem, const std::vector<PlanStage>& stages) {
  const PlanFigures figures = figures_of(problem, stages);
  std::vector<DapplePart> parts;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageFigures& stage = figures.stages[s];
    parts.push_back({stage.forward, stage.backward, stage.forward + stage.backward, stage.all_reduce});
    if (s + 1 == stages.size()) break;
    const StageLink& link = figures.links[s];
    parts.push_back({link.forward + link.latency, link.backward + link.latency, link.forward, 0});
  }
  return dapple_latency(parts, figures.microbatches);
}

// The least latency of all cuts of the nodes from `node` on, on any numbers of the devices left on each machine.
double least_latency(const PlanProblem& problem, std::vector<PlanStage>& stages, int node, int left0, int left1) {
  const int n = static_cast<int>(problem.graph.nodes.size()), half = static_cast<int>(problem.cluster.devices.size()) / 2;
  if (node == n) return left0 + left1 == 0 ? latency_of(problem, stages) : kInfinity;
  double least = kInfinity;
  for (int end = left0 + left1 == 1 ? n : node + 1; end <= n; ++end)
    for (int first = 0; first <= left0; ++first)
      for (int second = first == 0 ? 1 : 0; second <= left1; ++second) {
        if (end == n && first + second < left0 + left1) continue;
        PlanStage stage;
        for (int i = node; i < end; ++i) stage.nodes.push_back(i);
        for (int i = 0; i < first; ++i) stage.devices.push_back(half - left0 + i);
        for (int i = 0; i < second; ++i) stage.devices.push_back(2 * half - left1 + i);
        stages.push_back(stage);
        least = std::min(least, least_latency(problem, stages, end, left0 - first, left1 - second));
        stages.pop_back();
      }
  return least;
}

TEST(Dapple, LatencyOfFourEqualStages) {
  const DapplePart stage{1, 2, 3, 0}, none{}, slow{1, 1, 0, 0};
  EXPECT_EQ(dapple_latency(std::vector<DapplePart>{stage, none, stage, none, stage, none, stage}, 8), 33);
  EXPECT_EQ(dapple_latency(std::vector<DapplePart>{stage, slow, stage, slow, stage, slow, stage}, 8), 39);
  // The last stage's gradients are summed while the others go back; those of the first are not.
  const DapplePart summed{1, 2, 3, 5};
  EXPECT_EQ(dapple_latency(std::vector<DapplePart>{stage, none, stage, none, stage, none, summed}, 8), 33);
  EXPECT_EQ(dapple_latency(std::vector<DapplePart>{summed, none, stage, none, stage, none, stage}, 8), 38);
  // A link that takes longer than any stage is the pivot.
  EXPECT_EQ(dapple_latency(std::vector<DapplePart>{stage, {4, 4, 4, 0}, stage}, 8), 6 + 8 + 7 * 4);
}

TEST(Dapple, LatencyIsTheSimulators) {
  for (std::uint64_t seed = 0; seed < test::rounds(20u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int nodes = 4 + static_cast<int>(random() % 9), devices = 2 * (1 + static_cast<int>(random() % 4));
    PlanProblem problem = random_chain(random, nodes, devices, seed % 2 == 0);
    problem.samples = 64;
    const Plan plan = make_plan("dapple", problem);
    EXPECT_NEAR(plan.predicted_time, plan.bottleneck, 0.02 * plan.predicted_time);
    EXPECT_NEAR(plan.bottleneck, latency_of(problem, plan.stages), 1e-9 * plan.bottleneck);
  }
}

TEST(Dapple, NearTheBestOfAllCutsAndPlacements) {
  for (std::uint64_t seed = 0; seed < test::rounds(30u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const bool large = seed == 0;
    PlanProblem problem = random_chain(random, large ? 10 : 3 + static_cast<int>(random() % 5), large ? 8 : 4, true);
    std::vector<PlanStage> stages;
    const int half = static_cast<int>(problem.cluster.devices.size()) / 2;
    const double least = least_latency(problem, stages, 0, half, half);
    const double found = make_plan("dapple", problem).bottleneck;
    EXPECT_GE(found, least * (1 - 1e-9));
    EXPECT_LE(found, least * 1.01);
  }
}

TEST(Dapple, LongTransfersRunFurtherAheadIfItFits) {
  PlanProblem problem;
  problem.graph = chain_graph({1, 1, 1, 1});
  problem.cluster = uniform_cluster(4, 1e9, 1);
  problem.samples = 8;
  problem.replicas = false;
  const Plan plan = make_plan("dapple", problem);
  EXPECT_EQ(plan.bottleneck, 39);
  EXPECT_DOUBLE_EQ(plan.predicted_time, 39);
  for (ClusterDevice& device : problem.cluster.devices) device.memory = 4;
  EXPECT_EQ(make_plan("dapple", problem).peak_bytes[0], 4);
}

TEST(Dapple, BranchesMemoryAndSingleDevices) {
  expect_plans_or_least_memory("dapple", {.nodes = 8, .replicas = true}, 30);
}

}  // namespace
}  // namespace penstock::test
