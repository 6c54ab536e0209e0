// SPDX-License-Identifier: Apache-2.0
// make_plan refuses some problems whichever the planner, and check_plan finds the mistakes in a planner's plan.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "planners/planner_list.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

PlanProblem three_nodes() {
  PlanProblem problem;
  problem.graph = chain_graph({1, 1, 1});
  problem.cluster = uniform_cluster(3, 1e9);
  problem.samples = 4;
  return problem;
}

std::string failure(const PlanProblem& problem, const std::string& planner = "best") {
  return message_of([&] { make_plan(planner, problem); });
}

TEST(Planners, TheDefaultIsBest) {
  EXPECT_EQ(planners().front().name, "best");
  for (const PlannerInfo& planner : planners()) EXPECT_FALSE(planner.summary.empty());
}

TEST(Planners, TheOneForEqualStagesIsInTheList) {
  for (const PlannerInfo& planner : planners()) {
    if (planner.even.empty()) continue;
    EXPECT_EQ(planner_named(planner.even).even, "") << planner.name;
  }
  EXPECT_TRUE(groups_planner().equal_groups);
}

TEST(Planners, UnknownNames) {
  const std::string message = failure(three_nodes(), "exakt");
  EXPECT_TRUE(message.starts_with("there is no planner \"exakt\"\n  planners: best, exact")) << message;
  EXPECT_TRUE(message.ends_with("hint: did you mean \"exact\"?")) << message;
  const std::string other = message_of([] { planner_named("elsewere", {"elsewhere"}); });
  EXPECT_NE(other.find(", degrees, elsewhere\n"), std::string::npos) << other;
  EXPECT_TRUE(other.ends_with("hint: did you mean \"elsewhere\"?")) << other;
}

TEST(Planners, ProblemsThatAreNone) {
  PlanProblem problem = three_nodes();
  problem.cluster.devices.clear();
  EXPECT_EQ(failure(problem), "cluster \"3 equal devices\" has no devices\n  hint: give one at least");
  problem = three_nodes();
  problem.cluster.devices[1].speed = 0;
  EXPECT_EQ(failure(problem),
            "device 1 of cluster \"3 equal devices\" has speed 0.0 and inf bytes of memory\n  hint: both must be positive");
  problem = three_nodes();
  problem.graph.nodes.clear();
  EXPECT_EQ(failure(problem), "chain has no nodes\n  hint: give a graph with one node at least");
  problem = three_nodes();
  problem.graph.nodes[2].costs.clear();
  EXPECT_EQ(failure(problem), "node \"n2\" of chain has no costs");
  problem = three_nodes();
  problem.graph.edges.push_back({2, 1, 0});
  EXPECT_EQ(failure(problem),
            "an edge of chain goes from node 2 to 1\n"
            "  nodes are 0 to 2 in topological order\n"
            "  hint: number the nodes so that every edge goes to a larger one");
  problem = three_nodes();
  problem.batches = {3};
  EXPECT_TRUE(failure(problem).starts_with("no size of a micro-batch divides the step's 4 samples")) << failure(problem);
  problem = three_nodes();
  for (PlanNode& node : problem.graph.nodes) node.costs[0].degree = 4;
  EXPECT_EQ(failure(problem), "the nodes of chain have no number of devices in common that the cluster has");
}

// Whoever is registered: micro-batches have the sizes that the problem says, or it is refused with a word of them.
TEST(Planners, EachTakesTheSizesThatAreSaid) {
  for (const PlannerInfo& planner : planners())
    for (const std::vector<int>& sizes : {std::vector{2}, {4}, {2, 8}})
      for (std::uint64_t seed = 0; seed < 4; ++seed) {
        SCOPED_TRACE(testing::Message() << planner.name << ", sizes from " << sizes[0] << ", seed " << seed);
        std::mt19937_64 random(seed);
        PlanProblem problem = random_problem(random, {.nodes = 5, .devices = 3, .batches = seed % 2 == 0, .replicas = seed < 2});
        problem.batches = sizes;
        try {
          const Plan plan = make_plan(planner, problem, {.seconds = 600});
          for (const PlanStage& stage : plan.stages)
            EXPECT_EQ(std::ranges::count(sizes, plan.degrees ? plan.degrees->results[0].degrees.samples : batch_of(problem, stage)), 1);
        } catch (const Error& error) {
          EXPECT_NE(std::string(error.what()).find("--microbatch-sizes"), std::string::npos) << error.what();
        }
      }
}

// A planner of a user's own that looks at no sizes is refused.
TEST(Planners, OtherSizesThanSaidAreRefused) {
  PlanProblem problem = three_nodes();
  problem.batches = {2};
  const PlannerInfo own{"own", "", [](const PlanProblem&, const PlanOptions&) {
                          Plan plan;
                          plan.stages = stages_on_own_devices({{0}, {1}, {2}});
                          return plan;
                        }};
  EXPECT_EQ(message_of([&] { make_plan(own, problem); }),
            "planner own does not take micro-batches of 2 samples\n  its stages would take 1, 1, 1\n"
            "  hint: leave out --microbatch-sizes, or --planner best");
  problem.batches = {1};
  EXPECT_EQ(make_plan(own, problem).stages.size(), 3u);
}

// A refusal names more memory than there is, and with that there is a plan.
TEST(Planners, TheMemoryThatARefusalNamesDoes) {
  int refused = 0;
  for (std::uint64_t seed = 0; seed < rounds(12u); ++seed) {
    std::mt19937_64 random(seed);
    PlanProblem problem = {.graph = random_plan_graph(random, 4 + static_cast<int>(random() % 4)), .cluster = {}, .samples = 16};
    problem.cluster = uniform_cluster(static_cast<int>(2 + random() % 3), 1e9, 0, 4 + pick(random, 40));
    problem.replicas = random() % 2 == 0;
    for (const PlannerInfo& planner : planners()) {
      PlanOptions options = {.seconds = 2};
      const std::string message = message_of([&] { make_plan(planner, problem, options); });
      const std::size_t open = message.find(" (", message.find("memory of each device that would do is"));
      if (message.find("memory of each device that would do is") == std::string::npos) continue;
      ++refused;
      const double needed = std::stod(message.substr(open + 2));
      EXPECT_GT(needed, problem.cluster.devices[0].memory) << planner.name << ", seed " << seed << ": " << message;
      PlanProblem enough = problem;
      for (ClusterDevice& device : enough.cluster.devices) device.memory = needed;
      EXPECT_EQ(message_of([&] { make_plan(planner, enough, options); }), "no error")
          << planner.name << ", seed " << seed << ": " << message;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(Planners, StagesGetNames) {
  PlanProblem problem = three_nodes();
  problem.cluster = uniform_cluster(2, 1e9);
  problem.graph.nodes[0].costs[0].forward = 2;
  problem.replicas = false;
  const Plan plan = make_plan("best", problem, {.seconds = 600});
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].name, "n0");
  EXPECT_EQ(plan.stages[1].name, "n1 .. n2");
  EXPECT_GE(plan.search_seconds, 0);
}

class CheckPlan : public testing::Test {
 protected:
  CheckPlan() : problem_(three_nodes()) { plan_.stages = stages_on_own_devices({{0}, {1}, {2}}); }
  std::string message() const {
    const std::string text = message_of([&] { check_plan(problem_, plan_); });
    return text.starts_with("plan of chain: ") ? text.substr(15) : text;
  }

  PlanProblem problem_;
  Plan plan_;
};

TEST_F(CheckPlan, Nodes) {
  EXPECT_EQ(message(), "no error");
  plan_.stages[1].nodes = {0, 1};
  EXPECT_EQ(message(), "stages 0 and 1 both have node 0 \"n0\"");
  plan_.stages[1].nodes = {};
  EXPECT_EQ(message(), "stage 1 has no nodes");
  plan_.stages[1].nodes = {7};
  EXPECT_EQ(message(), "stage 1 has node 7, which the graph has not");
  plan_.stages[0].nodes = {1, 0};
  EXPECT_EQ(message(), "the nodes of stage 0 are not ascending");
  plan_.stages = stages_on_own_devices({{0}, {2}});
  EXPECT_EQ(message(), "no stage has node 1 \"n1\"");
}

TEST_F(CheckPlan, Order) {
  plan_.stages = stages_on_own_devices({{1}, {0}, {2}});
  EXPECT_EQ(message(), "stage 1 feeds stage 0, which stands before it\n  0 \"n0\" -> 1 \"n1\"");
}

TEST_F(CheckPlan, Choices) {
  plan_.stages[0].choices = {0, 0};
  EXPECT_EQ(message(), "stage 0 has 2 choices for 1 nodes");
  plan_.stages[0].choices = {1};
  EXPECT_EQ(message(), "stage 0 runs node 0 \"n0\" by cost 1 of 1");
  auto& costs = problem_.graph.nodes[0].costs;
  costs.push_back(costs[0]);
  EXPECT_EQ(message(), "stage 0 does not name the first cost of node 0 \"n0\" of its way and degree");
  costs[1].degree = 2;
  EXPECT_EQ(message(), "stage 0 runs node 0 \"n0\" on 2 devices, the others on 1");
}

TEST_F(CheckPlan, Devices) {
  plan_.stages[0].devices = {};
  EXPECT_EQ(message(), "stage 0 has no device");
  plan_.stages[0].devices = {3};
  EXPECT_EQ(message(), "stage 0 is on device 3 of a cluster of 3");
  plan_.stages[0].devices = {1};
  EXPECT_EQ(message(), "stages 0 and 1 are both on device 1");
  problem_.replicas = false;
  plan_.stages = stages_on_own_devices({{0, 1, 2}});
  plan_.stages[0].devices = {0, 1};
  EXPECT_EQ(message(), "stage 0 has 2 replicas, which are not allowed");
  for (PlanNode& node : problem_.graph.nodes) node.costs[0].degree = 2;
  plan_.stages[0].degree = 2;
  plan_.stages[0].devices = {0, 1, 2};
  EXPECT_EQ(message(), "stage 0 has 3 devices for replicas of 2");
}

TEST_F(CheckPlan, Sizes) {
  plan_.stages[0].samples = 2;
  EXPECT_EQ(message(), "no error");
  problem_.graph.nodes[0].equal_batches = problem_.graph.nodes[2].equal_batches = true;
  EXPECT_EQ(message(),
            "stage 2 takes micro-batches of 1 samples, others of 2\n"
            "  node 2 \"n2\" depends on the micro-batch's size, as nodes of other stages do");
  plan_.stages[0].samples = 3;
  EXPECT_EQ(message(), "stage 0 takes micro-batches of 3 samples, which do not divide the step's 4");
}

}  // namespace
}  // namespace penstock::test
