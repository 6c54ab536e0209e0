#include <gtest/gtest.h>

#include <limits>

#include "plan/plan_file.h"
#include "plan/planner_list.h"
#include "plan/profiles.h"
#include "plan/random_plan.h"
#include "support/errors.h"

namespace penstock {
namespace {

using test::Mask;
using test::message_of;
using test::profile;

TEST(MaxLoadPlanner, AsTheOriginal) {
  if (!test::has_profiles()) GTEST_SKIP();
  struct Row {
    int devices;
    double with_cpu, without;  // milliseconds
  };
  for (const Row& row : {Row{2, 107.90290625, 109.91790625}, Row{4, 57.77690625, 58.5458125}, Row{6, 41.7458125, 41.7458125},
                         Row{8, 33.3788125, 33.3788125}})
    for (const int cpus : {0, 1}) {
      PlanProblem problem;
      problem.graph = profile("dnn-partitioning-bert24_training.json");
      problem.cluster = uniform_cluster(row.devices, 1e9, 0, problem.graph.memory);
      problem.cluster.cpus = cpus;
      const double expected = 1e-3 * (cpus == 1 ? row.with_cpu : row.without);
      EXPECT_NEAR(plan_by_max_load(problem, {}).bottleneck, expected, 1e-10 * expected) << row.devices << " " << cpus;
    }
}

TEST(MaxLoadPlanner, OneAccelerator) {
  if (!test::has_profiles()) GTEST_SKIP();
  PlanProblem problem;
  problem.graph = profile("dnn-partitioning-bert24_training.json");
  problem.cluster = uniform_cluster(1, 1e9, 0, problem.graph.memory);
  EXPECT_NEAR(plan_by_max_load(problem, {}).bottleneck, 0.217813, 1e-12);
}

double load_of(const PlanGraph& graph, Mask stage, bool cpu) {
  double load = test::sum_over(
      graph, stage, [&](const PlanNode& node) { return cpu ? node.cpu_seconds : node.costs[0].forward + node.costs[0].backward; });
  Mask crossing = 0;
  for (const PlanEdge& edge : graph.edges)
    if ((stage >> edge.from & 1) != (stage >> edge.to & 1)) crossing |= Mask{1} << edge.from;
  return cpu ? load : load + test::sum_over(graph, crossing, [](const PlanNode& node) { return node.transfer_seconds; });
}

double bytes_of(const PlanGraph& graph, Mask stage) {
  return test::sum_over(graph, stage, [](const PlanNode& node) { return node.costs[0].resident_bytes + node.costs[0].live_bytes; });
}

TEST(MaxLoadPlanner, AsEveryPlanOfSmallGraphs) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    PlanProblem problem;
    problem.graph = test::random_plan_graph(random, 1 + static_cast<int>(seed % 6));
    for (PlanNode& node : problem.graph.nodes) {
      node.transfer_seconds = test::pick(random, 4);
      node.cpu_seconds = 3 * test::pick(random, 15);
    }
    const int devices = 1 + static_cast<int>(random() % 3), cpus = static_cast<int>(random() % 3);
    const double memory = seed % 2 == 0 ? std::numeric_limits<double>::infinity() : 5 + test::pick(random, 30);
    problem.cluster = uniform_cluster(devices, 1e9, 0, memory);
    problem.cluster.cpus = cpus;
    double best = 1e300;
    test::each_chain(problem.graph, [&](const std::vector<Mask>& chain) {
      test::each_choice(static_cast<int>(chain.size()) - 1, 2, [&](const std::vector<int>& on_cpu) {
        double value = 0;
        int used[2] = {0, 0};
        for (std::size_t s = 0; s < on_cpu.size(); ++s) {
          const Mask stage = chain[s + 1] & ~chain[s];
          ++used[on_cpu[s]];
          value = std::max(value, load_of(problem.graph, stage, on_cpu[s] == 1));
          if (on_cpu[s] == 0 && bytes_of(problem.graph, stage) > memory) value = 1e300;
        }
        if (used[0] <= devices && used[1] <= cpus) best = std::min(best, value);
      });
    });
    if (best == 1e300) {
      EXPECT_NE(message_of([&] { plan_by_max_load(problem, {}); }), "no error");
    } else {
      EXPECT_NEAR(plan_by_max_load(problem, {}).bottleneck, best, 1e-9 * (1 + best));
    }
  }
}

TEST(MaxLoadPlanner, NodesForHostProcessorsNeedOne) {
  PlanProblem problem;
  problem.graph.name = "one";
  problem.graph.nodes.resize(1);
  problem.graph.nodes[0].name = "decode";
  problem.graph.nodes[0].cpu_seconds = 2;
  problem.cluster = uniform_cluster(2, 1e9);
  EXPECT_EQ(message_of([&] { make_plan("max-load", problem); }),
            "node \"decode\" of one runs on host processors only\n  cluster \"2 equal devices\" has none\n"
            "  hint: --cpus N, or cpus = N in the cluster's file");
  problem.cluster.cpus = 1;
  const Plan plan = plan_by_max_load(problem, {});
  EXPECT_EQ(plan.bottleneck, 2);
  EXPECT_EQ(plan.stages[0].devices, std::vector<int>{2});
}

// decode -> train -> score, of which only a host processor runs the first and the last.
PlanProblem three_nodes() {
  PlanProblem problem;
  problem.graph.name = "three";
  problem.graph.nodes = {{.name = "decode", .costs = {}, .output_bytes = 40, .cpu_seconds = 3},
                         {.name = "train", .costs = {{.samples = 2, .forward = 1, .backward = 3}}, .output_bytes = 20},
                         {.name = "score", .costs = {}, .cpu_seconds = 1.5}};
  problem.graph.edges = {{0, 1, 40}, {1, 2, 20}};
  problem.graph.samples = 2;
  problem.cluster = uniform_cluster(2, 10);
  problem.cluster.cpus = 2;
  return problem;
}

TEST(MaxLoadPlanner, StagesOnHostProcessorsAreTimed) {
  for (const char* planner : {"max-load", "best"}) {
    const Plan plan = make_plan(planner, three_nodes());
    ASSERT_EQ(plan.stages.size(), 3u);
    EXPECT_GE(plan.stages[0].devices[0], 2);
    EXPECT_LT(plan.stages[1].devices[0], 2);
    EXPECT_EQ(plan.predicted_time, 3 + 4 + 1.5 + 2 * 4 + 2 * 2) << planner;  // all of it and both transfers, there and back
    EXPECT_EQ(plan.lower_bound, 3 + 2 + 1.5);                                // on two devices
    EXPECT_EQ(plan.peak_bytes.size(), 2u);
    EXPECT_EQ(plan.optimal, planner == std::string("max-load"));
    const PlanFile file = plan_file_of(three_nodes(), plan);
    EXPECT_TRUE(devices_text(file, file.stages[0]).starts_with("cpu "));
    EXPECT_EQ(devices_text(file, file.stages[1]), "0");
  }
  PlanProblem one = three_nodes();
  one.cluster.cpus = 1;
  EXPECT_EQ(message_of([&] { make_plan("best", one); }),
            "no plan of three has all nodes that only a host processor runs on 1 processor\n"
            "  each holds one stage, which nothing outside it joins in a circle\n  hint: more --cpus, or costs on a device");
}

TEST(MaxLoadPlanner, OthersHaveStagesOnDevicesOnly) {
  for (const PlannerInfo& planner : planners()) {
    if (planner.name == "best" || planner.name == "max-load") continue;
    EXPECT_EQ(message_of([&] { make_plan(planner.name, three_nodes()); }),
              "node \"decode\" of three runs on host processors only\n  planner " + planner.name +
                  " has stages on devices only\n  hint: --planner max-load");
  }
}

// Where nodes may run on either, best compares, and nothing is proven.
TEST(MaxLoadPlanner, BestTakesHostProcessorsWhereTheyAreFaster) {
  PlanProblem problem = three_nodes();
  for (PlanNode& node : problem.graph.nodes)
    if (node.costs.empty()) node.costs = {{.samples = 2, .forward = 10, .backward = 30}};
  Plan plan = make_plan("best", problem);
  EXPECT_EQ(plan.predicted_time, 20.5);
  EXPECT_FALSE(plan.optimal);
  problem.cluster.cpus = 0;
  plan = make_plan("best", problem);
  EXPECT_TRUE(plan.optimal);
  EXPECT_EQ(plan.predicted_time, 42);  // on both devices
}

TEST(MaxLoadPlanner, SaysWhichMemoryWouldDo) {
  PlanProblem problem;
  problem.graph.name = "one";
  problem.graph.nodes.resize(1);
  problem.graph.nodes[0].costs.resize(1);
  problem.graph.nodes[0].costs[0].resident_bytes = 64;
  problem.cluster = uniform_cluster(2, 1e9, 0, 10);
  const std::string message = message_of([&] { plan_by_max_load(problem, {}); });
  EXPECT_EQ(message.substr(0, message.find('(')),
            "no plan of one fits into devices of 10 B\n  the smallest memory of each device that would do is 64 B ");
}

}  // namespace
}  // namespace penstock
