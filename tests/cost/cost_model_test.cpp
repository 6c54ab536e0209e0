// SPDX-License-Identifier: Apache-2.0
#include "cost/cost_model.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/random_plan.h"

namespace penstock::test {
namespace {

// Measured with 2, 4 and 8 samples; a second way with 2 only, a third on two devices.
PlanNode measured_node() {
  PlanNode node;
  node.name = "measured";
  for (const auto& [samples, forward] : std::vector<std::pair<int, double>>{{2, 3}, {4, 4}, {8, 8}})
    node.costs.push_back(
        {.samples = samples, .forward = forward, .backward = 2 * forward, .live_bytes = 10.0 * samples, .resident_bytes = 7});
  node.costs.push_back({.name = "again", .samples = 2, .forward = 3, .backward = 9, .live_bytes = 1});
  node.costs.push_back({.degree = 2, .samples = 2, .forward = 2, .backward = 4, .parameter_bytes = 5});
  return node;
}

TEST(CostModel, TimesLieOnTheLinesBetweenMeasuredSizes) {
  const PlanNode node = measured_node();
  EXPECT_DOUBLE_EQ(cost_of(node, 0, 2).forward, 3);
  EXPECT_DOUBLE_EQ(cost_of(node, 0, 3).forward, 3.5);
  EXPECT_DOUBLE_EQ(cost_of(node, 0, 3).backward, 7);
  EXPECT_DOUBLE_EQ(cost_of(node, 0, 6).forward, 6);
  EXPECT_DOUBLE_EQ(cost_of(node, 0, 10).forward, 10);
  EXPECT_DOUBLE_EQ(cost_of(node, 0, 1).forward, 2.5);
  EXPECT_DOUBLE_EQ(cost_of(node, 0, 1).live_bytes, 10);
  EXPECT_EQ(cost_of(node, 0, 1).resident_bytes, 7);
  // A line that falls below zero stops at half of the share.
  PlanNode steep = plan_node("steep", 1);
  steep.costs = {{.samples = 2, .forward = 1}, {.samples = 4, .forward = 4}};
  EXPECT_DOUBLE_EQ(cost_of(steep, 0, 1).forward, 0.25);
}

TEST(CostModel, OneMeasuredSizeIsALineThroughZero) {
  const PlanNode node = measured_node();
  EXPECT_DOUBLE_EQ(cost_of(node, 3, 4).forward, 6);
  EXPECT_DOUBLE_EQ(cost_of(node, 4, 1).backward, 2);
  EXPECT_EQ(cost_of(node, 4, 1).parameter_bytes, 5);
}

TEST(CostModel, ChoicesByNameAndDegree) {
  const PlanNode node = measured_node();
  EXPECT_EQ(choice_of(node, 1, ""), 0);
  EXPECT_EQ(choice_of(node, 1, "again"), 3);
  EXPECT_EQ(choice_of(node, 2, ""), 4);
  EXPECT_EQ(choice_of(node, 2, "again"), -1);
}

TEST(CostModel, SetsAreSums) {
  const PlanGraph graph = chain_graph({1, 2, 4});
  const std::vector<int> nodes = {0, 2};
  const SetCost cost = cost_of(graph, nodes, {}, 2);
  EXPECT_DOUBLE_EQ(cost.forward, 10);
  EXPECT_DOUBLE_EQ(cost.backward, 20);
  EXPECT_DOUBLE_EQ(cost.live_bytes, 4);
}

TEST(CostModel, NodesAreScaledToWhatTheirStageTook) {
  PlanGraph graph;
  graph.nodes = {plan_node("a", 1), measured_node(), plan_node("c", 1)};
  graph.nodes[0].costs = {{.samples = 2, .forward = 1, .backward = 2, .weight = 1}};
  graph.nodes[2].costs = {{.samples = 2, .forward = 5}};
  PlanStage stage{.nodes = {0, 1}, .choices = {0, 3}};
  scale_times(graph, stage, 2, 8, 5.5);
  const SetCost cost = cost_of(graph, stage.nodes, stage.choices, 2);
  EXPECT_DOUBLE_EQ(cost.forward, 8);
  EXPECT_DOUBLE_EQ(cost.backward, 5.5);
  EXPECT_DOUBLE_EQ(graph.nodes[0].costs[0].weight, 0.5);
  EXPECT_LT(graph.nodes[1].costs[0].weight, 0) << "it is still unknown";
  EXPECT_DOUBLE_EQ(graph.nodes[1].costs[4].forward, 4);
  EXPECT_DOUBLE_EQ(graph.nodes[2].costs[0].forward, 5);
  // There is nothing to scale where a stage has no backward.
  scale_times(graph, {.nodes = {2}}, 2, 10, 1);
  EXPECT_DOUBLE_EQ(graph.nodes[2].costs[0].forward, 10);
  EXPECT_DOUBLE_EQ(graph.nodes[2].costs[0].backward, 0);
}

TEST(CostModel, MeasuredSizesAgree) {
  PlanGraph graph = chain_graph({1, 1});
  EXPECT_EQ(measured_samples(graph), 1);
  graph.nodes[1].costs[0].samples = 2;
  EXPECT_EQ(message_of([&] { measured_samples(graph); }),
            "nodes of chain were measured with micro-batches of different sizes\n"
            "  \"n0\": 1 samples\n"
            "  \"n1\": 2");
  graph.nodes.clear();
  EXPECT_EQ(message_of([&] { measured_samples(graph); }), "chain has no nodes\n  hint: give a graph with one node at least");
}

TEST(CostModel, AnOutputGoesOnceToEachStageThatReadsIt) {
  PlanGraph graph = chain_graph({1, 1, 1, 1});
  graph.edges = {{0, 1, 10}, {0, 2, 10}, {0, 3, 10}, {1, 2, 1}};
  for (PlanNode& node : graph.nodes) node.costs[0].samples = 2;
  const auto stages = stages_on_own_devices({{0}, {1, 2}, {3}});
  EXPECT_DOUBLE_EQ(bytes_between(graph, stages[0], stages[1], 4), 20);
  EXPECT_DOUBLE_EQ(bytes_between(graph, stages[0], stages[2], 2), 10);
  EXPECT_EQ(bytes_between(graph, stages[1], stages[2], 2), 0);
  const std::vector<StageTransfer> all = transfers_between(graph, stages);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_DOUBLE_EQ(all[0].forward_bytes, 5);
  EXPECT_DOUBLE_EQ(all[0].backward_bytes, 5);
}

TEST(CostModel, DegreesAddToTransfers) {
  PlanGraph graph = chain_graph({1, 1}, 10);
  graph.nodes[1].costs[0].forward_sync = {{0, 3}};
  graph.nodes[0].costs[0].backward_sync = {{1, 5}};
  const std::vector<StageTransfer> all = transfers_between(graph, stages_on_own_devices({{0}, {1}}));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_DOUBLE_EQ(all[0].forward_bytes, 13);
  EXPECT_DOUBLE_EQ(all[0].backward_bytes, 15);
}

TEST(CostModel, AMeasuredTransferHasNoBytes) {
  PlanGraph graph = chain_graph({1, 1}, 10);
  graph.nodes[0].outputs = {{.seconds = 0.5, .readers = {1}}};
  const std::vector<StageTransfer> all = transfers_between(graph, stages_on_own_devices({{0}, {1}}));
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].forward_bytes, 0);
  EXPECT_EQ(all[0].forward_seconds, 0.5);
  EXPECT_EQ(all[0].backward_seconds, 0);
}

// Node 0 sends 1 to both others and 2 to the last; 4 is a gradient of the last, 8 one of the first that a file sends forward.
TEST(CostModel, MeasuredOutputsGoOnceToEachStageAndGradientsBack) {
  PlanGraph graph = chain_graph({1, 1, 1});
  graph.edges.push_back({0, 2, 0});
  graph.nodes[0].outputs = {{1, false, {1, 2}}, {2, false, {2}}, {8, true, {1}}};
  graph.nodes[2].outputs = {{4, true, {0, 1}}};
  for (PlanNode& node : graph.nodes) node.costs[0].samples = 2;
  const auto seconds = [&](const std::vector<std::vector<int>>& stages) {
    std::vector<double> out;
    for (const StageTransfer& t : transfers_between(graph, stages_on_own_devices(stages))) {
      out.push_back(t.forward_seconds * 2);
      out.push_back(t.backward_seconds * 2);
    }
    return out;
  };
  EXPECT_EQ(seconds({{0}, {1}, {2}}), (std::vector<double>{1, 8, 3, 4, 0, 4}));  // 0 to 1, 0 to 2, 1 to 2
  EXPECT_EQ(seconds({{0}, {1, 2}}), (std::vector<double>{3, 12}));
  EXPECT_EQ(seconds({{0, 1}, {2}}), (std::vector<double>{3, 4}));
}

TEST(CostModel, LinksAndRings) {
  ClusterSpec cluster = uniform_cluster(4, 10, 1);
  cluster.between[{1, 2}] = {3, 20};
  cluster.between[{0, 2}] = {0.5, 5};
  EXPECT_EQ(slowest_link(cluster, std::vector{0, 1}, std::vector{2}).latency, 3);
  EXPECT_EQ(slowest_link(cluster, std::vector{0, 1}, std::vector{2}).bandwidth, 5);
  EXPECT_EQ(all_reduce_seconds(cluster, std::vector{0}, 100), 0);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, std::vector{0, 1}, 100), 2 * 0.5 * 100 / 10 + 2);
  EXPECT_DOUBLE_EQ(all_reduce_seconds(cluster, std::vector{0, 1, 3, 2}, 100), 2 * 0.75 * 100 / 5 + 6);
}

TEST(CostModel, StagesInOrder) {
  PlanGraph graph = chain_graph({1, 1, 1, 1});
  std::vector<PlanStage> stages = stages_on_own_devices({{2, 3}, {0}, {1}});
  EXPECT_TRUE(order_stages(graph, stages));
  EXPECT_EQ(stages[0].nodes, std::vector<int>{0});
  EXPECT_EQ(stages[2].nodes, (std::vector<int>{2, 3}));
  stages = stages_on_own_devices({{0, 2}, {1, 3}});
  EXPECT_FALSE(order_stages(graph, stages));
  graph.edges = {{0, 2, 0}, {0, 3, 0}, {1, 3, 0}};
  const StageShape shape = shape_of(graph, stages_on_own_devices({{0}, {1}, {2, 3}}));
  EXPECT_EQ(shape.predecessors[2], (std::vector<std::int32_t>{0, 1}));
}

}  // namespace
}  // namespace penstock::test
