// SPDX-License-Identifier: Apache-2.0
// Planners best and exact against each other and against every plan there is.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "cost/cost_model.h"
#include "planners/exact_plan.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

// Every plan of a problem with ways of degree 1: each node in each of the stages, each device with a stage or idle, each way and size. The
// best score, by evaluate() itself.
class EveryPlan {
 public:
  EveryPlan(const PlanProblem& problem, PlanGoal goal) : problem_(problem), goal_(goal), sizes_(allowed_batches(problem)) {}

  PlanScore run() {
    const std::size_t most = std::min(problem_.graph.nodes.size(), problem_.cluster.devices.size());
    for (std::size_t count = 1; count <= most; ++count) {
      plan_.stages.assign(count, {});
      give_node(0);
    }
    return best_;
  }

 private:
  void give_node(std::size_t node) {
    if (node == problem_.graph.nodes.size()) {
      const auto has_nodes = [](const PlanStage& stage) { return !stage.nodes.empty(); };
      if (std::all_of(plan_.stages.begin(), plan_.stages.end(), has_nodes)) give_device(0);
      return;
    }
    const auto& costs = problem_.graph.nodes[node].costs;
    for (PlanStage& stage : plan_.stages)
      for (std::size_t c = 0; c < costs.size(); ++c) {
        if (c > 0 && costs[c].name == costs[c - 1].name) continue;
        stage.nodes.push_back(static_cast<int>(node));
        stage.choices.push_back(static_cast<int>(c));
        give_node(node + 1);
        stage.nodes.pop_back();
        stage.choices.pop_back();
      }
  }

  void give_device(int device) {
    if (device == static_cast<int>(problem_.cluster.devices.size())) {
      const auto has_devices = [](const PlanStage& stage) { return !stage.devices.empty(); };
      if (std::all_of(plan_.stages.begin(), plan_.stages.end(), has_devices)) choose_size(0);
      return;
    }
    give_device(device + 1);
    for (PlanStage& stage : plan_.stages) {
      if (!stage.devices.empty() && !problem_.replicas) continue;
      stage.devices.push_back(device);
      give_device(device + 1);
      stage.devices.pop_back();
    }
  }

  void choose_size(std::size_t stage) {
    if (stage < plan_.stages.size()) {
      for (const int size : sizes_) {
        plan_.stages[stage].samples = size;
        choose_size(stage + 1);
      }
      return;
    }
    if (message_of([&] { check_plan(problem_, plan_); }) != "no error") return;  // circles are also others' linear orders
    const bool fits = evaluate(problem_, plan_);
    if (goal_ == PlanGoal::time && fits) best_ = std::min(best_, {0, plan_.predicted_time});
    if (goal_ == PlanGoal::memory) best_ = std::min(best_, {0, fits ? 0 : lacking()});
  }

  // The most that a device with less would hold.
  double lacking() const {
    double bytes = 0;
    for (std::size_t d = 0; d < plan_.peak_bytes.size(); ++d)
      if (plan_.peak_bytes[d] > problem_.cluster.devices[d].memory) bytes = std::max(bytes, plan_.peak_bytes[d]);
    return bytes;
  }

  const PlanProblem& problem_;
  PlanGoal goal_;
  std::vector<int> sizes_;
  Plan plan_;
  PlanScore best_{0, std::numeric_limits<double>::infinity()};
};

void limit_memory(std::mt19937_64& random, PlanProblem& problem, double least, double most) {
  for (ClusterDevice& device : problem.cluster.devices)
    device.memory = 1e6 * std::uniform_real_distribution<double>(least, most)(random) * static_cast<double>(problem.graph.nodes.size());
}

TEST(ExactPlan, IsTheBestOfAllPlans) {
  for (std::uint64_t seed = 0; seed < test::rounds(80u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    RandomProblem of{.nodes = 2 + static_cast<int>(random() % 4),
                     .devices = 2 + static_cast<int>(random() % 2),
                     .series_parallel = random() % 2 == 0,
                     .unequal = random() % 2 == 0,
                     .replicas = random() % 2 == 0,
                     .updates = seed >= 40};
    of.ways = of.nodes < 4 && random() % 2 == 0;
    of.batches = of.nodes < 5 && !of.ways && random() % 2 == 0;
    PlanProblem problem = random_problem(random, of);
    if (of.batches) problem.graph.nodes[0].equal_batches = problem.graph.nodes[1].equal_batches = random() % 2 == 0;
    if (random() % 2 == 0) limit_memory(random, problem, 20, 120);
    const PlanScore every = EveryPlan(problem, PlanGoal::time).run();
    const ExactResult exact = exact_stages(problem, {}, PlanGoal::time, no_limit());
    EXPECT_TRUE(exact.finished);
    if (exact.stages.empty()) {
      EXPECT_TRUE(std::isinf(every.value));
      const ExactResult least = exact_stages(problem, {}, PlanGoal::memory, no_limit());
      EXPECT_NEAR(least.score.value, EveryPlan(problem, PlanGoal::memory).run().value, 1e-6 * least.score.value);
      continue;
    }
    EXPECT_NEAR(exact.score.value, every.value, 1e-8 * every.value);
    EXPECT_NEAR(score_of(figures_of(problem, exact.stages), PlanGoal::time).value, exact.score.value, 1e-12);
  }
}

TEST(ExactPlan, SaysThatItIsOptimal) {
  PlanProblem problem;
  problem.graph = chain_graph({1, 1, 1, 1});
  problem.cluster = uniform_cluster(4, 1e9);
  problem.samples = 8;
  problem.replicas = false;
  const Plan plan = make_plan("exact", problem, {.seconds = 600});
  EXPECT_EQ(plan.planner, "exact");
  EXPECT_EQ(plan.predicted_time, 33);
  EXPECT_TRUE(plan.optimal);
  EXPECT_EQ(plan.lower_bound, plan.predicted_time);
  EXPECT_EQ(plan.stages.size(), 4u);
}

// Even halves take 60 without updates and 140 with them. Two and six nodes: F0, four times F1 and B1, B0, two updates.
TEST(ExactPlan, UpdatesMoveTheCut) {
  PlanProblem problem = problem_of(chain_graph(std::vector<double>(8, 1)), uniform_cluster(2, 1e9), 4);
  problem.replicas = false;
  EXPECT_EQ(make_plan("exact", problem, {.seconds = 600}).predicted_time, 60);
  for (int n = 0; n < 4; ++n) problem.graph.nodes[static_cast<std::size_t>(n)].costs[0].update = 20;
  const Plan plan = make_plan("best", problem, {.seconds = 600});
  EXPECT_EQ(plan.predicted_time, 2 + 4 * 18 + 4 + 2 * 20);
  EXPECT_EQ(plan.stages[0].nodes, (std::vector<int>{0, 1}));
  EXPECT_TRUE(plan.optimal);
}

TEST(ExactPlan, TakesNoLargeGraphs) {
  PlanProblem problem;
  problem.graph = chain_graph(std::vector<double>(13, 1));
  problem.cluster = uniform_cluster(4, 1e9);
  EXPECT_EQ(message_of([&] { make_plan("exact", problem, {.seconds = 600}); }),
            "exact takes at most 12 nodes and 8 devices\n"
            "  chain has 13 nodes, the cluster 4 devices\n"
            "  hint: planner best takes any number");
  EXPECT_FALSE(make_plan("best", problem, {.seconds = 600}).optimal);
}

TEST(ExactPlan, StopsWhenItsTimeIsOver) {
  std::mt19937_64 random(1);
  PlanProblem problem = random_problem(random, {.nodes = 12, .devices = 8, .unequal = true, .batches = true, .replicas = true});
  const Plan plan = make_plan("exact", problem, {.seconds = 0.02});
  EXPECT_FALSE(plan.optimal);
  EXPECT_LT(plan.lower_bound, plan.predicted_time);
}

// Graphs of at most 10 nodes, series-parallel or not, on equal and unequal devices, with and without memory limits.
TEST(BestPlan, WithinOnePercentOfExact) {
  int infeasible = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    RandomProblem of{.nodes = seed % 8 == 0 ? 10 : 4 + static_cast<int>(seed % 5),
                     .devices = 2 + static_cast<int>(seed % 3),
                     .series_parallel = seed % 2 == 0,
                     .unequal = random() % 2 == 0,
                     .batches = random() % 3 == 0,
                     .replicas = random() % 2 == 0};
    of.ways = of.nodes < 7 && random() % 4 == 0;
    PlanProblem problem = random_problem(random, of);
    if (random() % 2 == 0) limit_memory(random, problem, 5, 80);
    Plan exact, best;
    const std::string why = message_of([&] { exact = make_plan("exact", problem, {.seconds = 600}); });
    const std::string why_not = message_of([&] { best = make_plan("best", problem, {.seconds = 600, .exact = false}); });
    if (why != "no error") {
      ++infeasible;
      EXPECT_NE(why.find("the smallest memory that would do: "), std::string::npos) << why;
      EXPECT_EQ(why_not.substr(0, why_not.find('\n')), why.substr(0, why.find('\n')));
      const double least = exact_stages(problem, {}, PlanGoal::memory, no_limit()).score.value;
      EXPECT_NE(why.find(concat("(", std::llround(std::ceil(least)), " bytes)")), std::string::npos) << why;
      PlanProblem enough = problem;
      for (ClusterDevice& device : enough.cluster.devices) device.memory = std::max(device.memory, least);
      EXPECT_EQ(message_of([&] { make_plan("best", enough, {.seconds = 600, .exact = false}); }), "no error");
      continue;
    }
    ASSERT_EQ(why_not, "no error");
    EXPECT_TRUE(exact.optimal);
    EXPECT_FALSE(best.optimal);
    EXPECT_LE(best.predicted_time, exact.predicted_time * 1.01);
    // Exact is proven for the usual order: one that runs further ahead may be faster.
    const bool usual = std::all_of(best.stages.begin(), best.stages.end(), [](const PlanStage& stage) { return stage.ahead == 0; });
    if (usual) {
      EXPECT_GE(best.predicted_time, exact.predicted_time * (1 - 1e-8));
    }
    EXPECT_LE(best.lower_bound, exact.predicted_time * (1 + 1e-9));
    for (std::size_t d = 0; d < best.peak_bytes.size(); ++d) EXPECT_LE(best.peak_bytes[d], problem.cluster.devices[d].memory * (1 + 1e-8));
  }
  if (test::rounds(10) == 10) {  // a tenth of the problems need not have one
    EXPECT_GT(infeasible, 10);
  }
}

TEST(BestPlan, IsTheSameForTheSameSeed) {
  std::mt19937_64 random(5);
  const PlanProblem problem = random_problem(random, {.nodes = 20, .devices = 5, .unequal = true, .replicas = true});
  const Plan a = make_plan("best", problem, {.seconds = 600, .seed = 3}), b = make_plan("best", problem, {.seconds = 600, .seed = 3});
  EXPECT_EQ(a.predicted_time, b.predicted_time);
  for (std::size_t s = 0; s < a.stages.size(); ++s) EXPECT_EQ(a.stages[s].nodes, b.stages[s].nodes);
}

TEST(BestPlan, SaysWhoFoundItAndThatItIsProven) {
  PlanProblem problem;
  problem.graph = chain_graph({1, 1});
  problem.cluster = uniform_cluster(2, 1e9);
  problem.samples = 4;
  problem.replicas = false;
  const Plan plan = make_plan("best", problem, {.seconds = 600});
  EXPECT_EQ(plan.predicted_time, 15);
  EXPECT_TRUE(plan.planner.starts_with("best (")) << plan.planner;
  EXPECT_TRUE(plan.optimal);
}

TEST(BestPlan, SaysTheSmallestMemoryThatWouldDo) {
  PlanProblem problem;
  problem.graph = chain_graph({1, 1, 1});
  for (PlanNode& node : problem.graph.nodes) node.costs[0].resident_bytes = 1e9;
  problem.cluster = uniform_cluster(2, 1e9, 0, 1.5e9);
  const auto message = [&](const PlanOptions& options) { return message_of([&] { make_plan("best", problem, options); }); };
  EXPECT_EQ(message({}),
            "no plan of chain fits the memory of 2 equal devices\n"
            "  the smallest device has 1.4 GiB (1500000000 bytes)\n"
            "  the smallest memory that would do: 1.9 GiB (2000000002 bytes) on every device\n"
            "  hint: take more devices, recomputation or smaller micro-batches");
  EXPECT_NE(message({.exact = false}).find("this memory would do, maybe less: 1.9 GiB (2000000002 bytes)"), std::string::npos);
}

}  // namespace
}  // namespace penstock::test
