// SPDX-License-Identifier: Apache-2.0
#include "cost/evaluate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cost/cost_model.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

Plan evaluated(const PlanProblem& problem, std::vector<PlanStage> stages, bool fits = true) {
  Plan plan;
  plan.stages = std::move(stages);
  check_plan(problem, plan);
  EXPECT_EQ(evaluate(problem, plan), fits);
  return plan;
}

// A chain of stages in 1F1B, each pass written down in the order of time: of one actor per stage, links that carry one transfer at a time.
double simulated_chain(const std::vector<double>& forward, const std::vector<double>& transfer, int microbatches) {
  const int p = static_cast<int>(forward.size());
  const auto at = [](int i) { return static_cast<std::size_t>(i); };
  std::vector<std::vector<double>> f(at(p), std::vector<double>(at(microbatches), -1)), b = f;
  std::vector<int> done(at(p), 0);
  std::vector<double> free(at(p), 0), out(at(p), 0), back(at(p), 0);  // actors and the links behind them
  const auto arrival = [&](double ready, double& link, double seconds) { return link = std::max(link, ready) + seconds; };
  std::vector<std::vector<double>> arrives_f = f, arrives_b = f;
  for (bool moved = true; moved;) {
    moved = false;
    for (int s = 0; s < p; ++s) {
      const int ahead = std::min(p - s, microbatches), step = done[at(s)];
      if (step == 2 * microbatches) continue;
      const bool is_forward = step < ahead || (step < 2 * microbatches - ahead && (step - ahead) % 2 == 1);
      const int m = step < ahead                      ? step
                    : is_forward                      ? (step - ahead) / 2 + ahead
                    : step < 2 * microbatches - ahead ? (step - ahead) / 2
                                                      : step - microbatches;
      const double ready = is_forward ? (s == 0 ? 0 : arrives_f[at(s)][at(m)]) : (s == p - 1 ? 0 : arrives_b[at(s)][at(m)]);
      if (ready < 0) continue;
      const double end = std::max(ready, free[at(s)]) + (is_forward ? 1 : 2) * forward[at(s)];
      free[at(s)] = end;
      ++done[at(s)];
      moved = true;
      if (is_forward && s + 1 < p) arrives_f[at(s + 1)][at(m)] = arrival(end, out[at(s)], transfer[at(s)]);
      if (!is_forward && s > 0) arrives_b[at(s - 1)][at(m)] = arrival(end, back[at(s - 1)], transfer[at(s - 1)]);
    }
  }
  return *std::max_element(free.begin(), free.end());
}

// Two branches of two nodes into a head, forward 1 and backward 2 each.
PlanGraph two_branches() {
  PlanGraph graph = chain_graph({1, 1, 1, 1, 1});
  graph.edges = {{0, 1, 0}, {1, 4, 0}, {2, 3, 0}, {3, 4, 0}};
  return graph;
}

TEST(Evaluate, AChainIs1F1B) {
  const Plan plan =
      evaluated(problem_of(chain_graph({1, 1, 1, 1}), uniform_cluster(4, 1e9), 8), stages_on_own_devices({{0}, {1}, {2}, {3}}));
  EXPECT_EQ(plan.predicted_time, 33);
  EXPECT_EQ(plan.peak_bytes, (std::vector<double>{4, 3, 2, 1}));
  EXPECT_EQ(plan.schedule.actors.size(), 4u);
}

TEST(Evaluate, GraphPipesExampleIsFasterThanAsAChain) {
  const PlanProblem problem = problem_of(two_branches(), uniform_cluster(5, 1e9), 8);
  const Plan branches = evaluated(problem, stages_on_own_devices({{0}, {1}, {2}, {3}, {4}}));
  EXPECT_EQ(branches.predicted_time, 30);
  EXPECT_EQ(branches.peak_bytes, (std::vector<double>{3, 2, 3, 2, 1}));
  PlanProblem linear = problem;
  linear.graph.edges = {{0, 1, 0}, {1, 2, 0}, {2, 3, 0}, {3, 4, 0}};
  EXPECT_EQ(evaluated(linear, stages_on_own_devices({{0}, {1}, {2}, {3}, {4}})).predicted_time, 36);
}

TEST(Evaluate, EachPairOfStagesHasItsBytesAndItsLink) {
  // 0 feeds 1 and 2, which 3 joins; one micro-batch, so that all is one long way.
  PlanGraph graph = chain_graph({1, 1, 1, 1});
  graph.edges = {{0, 1, 10}, {0, 2, 10}, {1, 3, 20}, {2, 3, 80}};
  ClusterSpec cluster = uniform_cluster(4, 10, 0.5);
  cluster.between[{2, 3}] = {0.25, 20};
  const PlanProblem problem = problem_of(graph, cluster, 1);
  // F0, its transfer, F2, 80 bytes over the link of its own, F3, and back.
  EXPECT_DOUBLE_EQ(evaluated(problem, stages_on_own_devices({{0}, {1}, {2}, {3}})).predicted_time, 3 * 3 + 2 * (1.5 + 4.25));
  // 1 and 2 together: the output of 0 goes there once, theirs together.
  EXPECT_DOUBLE_EQ(evaluated(problem, stages_on_own_devices({{0}, {1, 2}, {3}})).predicted_time, 4 * 3 + 2 * (1.5 + 10.5));
}

TEST(Evaluate, ATransferMeasuredAsTimeTakesThatLong) {
  PlanGraph graph = chain_graph({1, 1}, 1e12);
  graph.nodes[0].outputs = {{.seconds = 0.25, .readers = {1}}};
  graph.nodes[1].outputs = {{.seconds = 0.25, .backward = true, .readers = {0}}};
  EXPECT_DOUBLE_EQ(evaluated(problem_of(graph, uniform_cluster(2, 1), 1), stages_on_own_devices({{0}, {1}})).predicted_time, 6.5);
}

TEST(Evaluate, SlowDevicesAndReplicas) {
  PlanGraph graph = chain_graph({1, 1});
  graph.nodes[1].costs[0].parameter_bytes = 30;
  graph.nodes[1].costs[0].resident_bytes = 100;
  PlanProblem problem = problem_of(graph, uniform_cluster(4, 10), 1);
  problem.cluster.devices[2].speed = 0.5;
  std::vector<PlanStage> stages = stages_on_own_devices({{0}, {1}});
  EXPECT_DOUBLE_EQ(evaluated(problem, stages).predicted_time, 6);
  stages[1].devices = {2};
  EXPECT_DOUBLE_EQ(evaluated(problem, stages).predicted_time, 3 + 6);
  // Three share the micro-batch, the slowest sets the pace; a ring of three moves 4/3 of 30 bytes at 10 a second while
  // stage 0 still goes back.
  stages[1].devices = {1, 2, 3};
  const Plan plan = evaluated(problem, stages);
  EXPECT_DOUBLE_EQ(plan.predicted_time, 1 + 2 + 4);
  EXPECT_DOUBLE_EQ(plan.peak_bytes[3], 100 + 1.0 / 3);
}

TEST(Evaluate, ReplicasOfSeveralDevicesSumTheirParts) {
  PlanGraph graph = chain_graph({1});
  graph.nodes[0].costs[0].degree = 2;
  graph.nodes[0].costs[0].parameter_bytes = 30;
  PlanProblem problem = problem_of(graph, uniform_cluster(4, 10), 1);
  problem.cluster.between[{0, 1}] = {0, 1};  // within a replica: no gradients go there
  PlanStage stage{.nodes = {0}, .devices = {0, 1, 2, 3}, .degree = 2};
  EXPECT_DOUBLE_EQ(evaluated(problem, {stage}).predicted_time, 1.5 + 3);
  problem.cluster.between[{1, 3}] = {0, 5};
  EXPECT_DOUBLE_EQ(evaluated(problem, {stage}).predicted_time, 1.5 + 6);
}

// One micro-batch: F0, F1 (twice as long on its slow device), B1 (until 7), B0 (until 9).
TEST(Evaluate, UpdatesFollowTheLastBackward) {
  PlanProblem problem = problem_of(chain_graph({1, 1}), uniform_cluster(4, 10), 1);
  problem.cluster.devices[1].speed = 0.5;
  const std::vector<PlanStage> stages = stages_on_own_devices({{0}, {1}});
  NodeCost &first = problem.graph.nodes[0].costs[0], &second = problem.graph.nodes[1].costs[0];
  second.update = 0.5;
  EXPECT_DOUBLE_EQ(evaluated(problem, stages).predicted_time, 9);  // beside B0
  second.update = 5;
  EXPECT_DOUBLE_EQ(evaluated(problem, stages).predicted_time, 7 + 10);
  first.update = 9;
  EXPECT_DOUBLE_EQ(evaluated(problem, stages).predicted_time, 9 + 9);
  EXPECT_DOUBLE_EQ(evaluated(problem, {{.nodes = {0, 1}, .devices = {0}}}).predicted_time, 6 + 14);
  // Each replica updates all of it, when the ring has moved 4/3 of 30 bytes at 10 a second.
  first.parameter_bytes = 30;
  EXPECT_DOUBLE_EQ(evaluated(problem, {{.nodes = {0, 1}, .devices = {0, 2, 3}}}).predicted_time, 2 + 4 + 14);
}

// Where all is one way, the bound is the step.
TEST(Evaluate, NoPlanLeavesOutAnUpdate) {
  PlanProblem problem = problem_of(chain_graph({1, 1}), uniform_cluster(1, 10), 1);
  problem.graph.nodes[0].costs[0].update = 9;
  problem.graph.nodes[1].costs[0].update = 5;
  EXPECT_DOUBLE_EQ(least_step_seconds(problem), 6 + 14);
  problem.cluster = uniform_cluster(2, 1e9);
  problem.replicas = false;
  EXPECT_DOUBLE_EQ(least_step_seconds(problem), 6 + 9);
  EXPECT_DOUBLE_EQ(step_bound(figures_of(problem, stages_on_own_devices({{0}, {1}}))), 6 + 9);
  problem.graph.nodes[0].costs[0].update = 1;
  EXPECT_DOUBLE_EQ(least_step_seconds(problem), 3 + 5);
}

TEST(Evaluate, MicrobatchesOfDifferentSizes) {
  const PlanProblem problem = problem_of(chain_graph({1, 1}), uniform_cluster(2, 1e9), 4);
  std::vector<PlanStage> stages = stages_on_own_devices({{0}, {1}});
  stages[0].samples = 2;
  stages[1].samples = 1;
  const Plan plan = evaluated(problem, stages);
  // Stage 0: F01 F23 | B01 B23, stage 1 from 2 on: F0 B0 F1 B1 (8) F2 B2 F3 B3 (14), and the last backward of stage 0 (18).
  EXPECT_DOUBLE_EQ(plan.predicted_time, 18);
  EXPECT_EQ(plan.peak_bytes, (std::vector<double>{4, 1}));
}

TEST(Evaluate, ChainsAgreeWithADirectSimulation) {
  std::mt19937_64 random(3);
  for (int round = 0; round < test::rounds(100); ++round) {
    SCOPED_TRACE(round);
    std::uniform_real_distribution<double> uniform(0.1, 2);
    const std::size_t p = 1 + random() % 5;
    const int microbatches = 1 + static_cast<int>(random() % 9);
    std::vector<double> forward, transfer;
    for (std::size_t s = 0; s < p; ++s) {
      forward.push_back(uniform(random));
      transfer.push_back(uniform(random));
    }
    PlanGraph graph = chain_graph(forward);
    std::vector<std::vector<int>> nodes;
    for (std::size_t s = 0; s < p; ++s) {
      nodes.push_back({static_cast<int>(s)});
      if (s > 0) graph.edges[s - 1].bytes = transfer[s - 1];
    }
    const PlanProblem problem = problem_of(graph, uniform_cluster(static_cast<int>(p), 1), microbatches);
    EXPECT_NEAR(evaluated(problem, stages_on_own_devices(nodes)).predicted_time, simulated_chain(forward, transfer, microbatches), 1e-9);
  }
}

TEST(Evaluate, LessMemoryHasFewerInFlight) {
  PlanProblem problem = problem_of(chain_graph({1, 1, 1, 1}), uniform_cluster(4, 1e9), 8);
  const auto stages = stages_on_own_devices({{0}, {1}, {2}, {3}});
  problem.cluster.devices[1].memory = 2;
  EXPECT_EQ(evaluated(problem, stages).peak_bytes, (std::vector<double>{4, 2, 2, 1}));
  problem.cluster.devices[0].memory = 1;
  const Plan one = evaluated(problem, stages);
  EXPECT_EQ(one.peak_bytes, (std::vector<double>{1, 1, 1, 1}));
  EXPECT_EQ(one.predicted_time, 8 * 12);
  problem.cluster.devices[0].memory = 0.5;
  EXPECT_EQ(evaluated(problem, stages, false).peak_bytes, (std::vector<double>{1, 1, 1, 1}));
}

TEST(Evaluate, APlannerMayAskForFewerInFlight) {
  const PlanProblem problem = problem_of(chain_graph({1, 1, 1}), uniform_cluster(3, 1e9), 8);
  std::vector<PlanStage> stages = stages_on_own_devices({{0}, {1}, {2}});
  stages[0].ahead = 2;
  stages[1].ahead = 9;
  EXPECT_EQ(evaluated(problem, stages).peak_bytes, (std::vector<double>{2, 2, 1}));
}

// Any sizes of micro-batches, any memory: no stage waits for ever, no device holds more than it has, and the bounds are bounds.
TEST(Evaluate, RandomPlansRunWithinTheirMemory) {
  for (std::uint64_t seed = 0; seed < test::rounds(400u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const int nodes = 2 + static_cast<int>(random() % 8);
    PlanProblem problem = random_problem(random, {.nodes = nodes,
                                                  .devices = 2 + static_cast<int>(random() % 4),
                                                  .series_parallel = random() % 2 == 0,
                                                  .unequal = random() % 2 == 0,
                                                  .batches = true,
                                                  .replicas = random() % 2 == 0,
                                                  .updates = seed % 2 == 1});
    problem.samples = 24;
    problem.batches = {1, 2, 3, 4, 6, 8, 12};
    Plan plan;
    plan.stages = random_stages(random, problem);
    check_plan(problem, plan);
    ASSERT_TRUE(evaluate(problem, plan));
    const double most = *std::max_element(plan.peak_bytes.begin(), plan.peak_bytes.end());
    for (ClusterDevice& device : problem.cluster.devices) device.memory = most * std::uniform_real_distribution<double>(0.3, 1.1)(random);
    const bool fits = evaluate(problem, plan);
    const PlanFigures figures = figures_of(problem, plan.stages);
    EXPECT_EQ(fits, figures.fit());
    for (std::size_t d = 0; fits && d < plan.peak_bytes.size(); ++d)
      EXPECT_LE(plan.peak_bytes[d], problem.cluster.devices[d].memory * (1 + 1e-6));
    EXPECT_NEAR(step_seconds(figures), plan.predicted_time, 1e-12 * plan.predicted_time);
    EXPECT_LE(step_bound(figures), plan.predicted_time * (1 + 1e-12));
    EXPECT_LE(least_step_seconds(problem), plan.predicted_time * (1 + 1e-12));
  }
}

TEST(Evaluate, SizesThatMayBeTaken) {
  PlanProblem problem = problem_of(chain_graph({1, 1}), uniform_cluster(3, 1e9), 12);
  EXPECT_EQ(allowed_batches(problem), (std::vector<int>{1}));
  problem.batches = {8, 6, 4, 4};
  EXPECT_EQ(allowed_batches(problem), (std::vector<int>{4, 6}));
  problem.batches = {5, 7};
  EXPECT_EQ(message_of([&] { allowed_batches(problem); }),
            "no size of a micro-batch divides the step's 12 samples\n"
            "  sizes: 5, 7\n"
            "  hint: give a size that divides the step");
  problem.samples = 0;
  EXPECT_EQ(step_samples(problem), 24);
  problem.graph.samples = 10;
  EXPECT_EQ(step_samples(problem), 10);
}

}  // namespace
}  // namespace penstock::test
