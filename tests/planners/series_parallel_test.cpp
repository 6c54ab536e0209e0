// SPDX-License-Identifier: Apache-2.0
#include "planners/series_parallel.h"

#include <gtest/gtest.h>

#include "base/numbers.h"
#include "base/text.h"
#include "support/plan_graphs.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Random;

SeriesParallel tree_of(const PlanGraph& graph) {
  std::vector<double> weights;
  for (const PlanNode& node : graph.nodes) weights.push_back(node.costs[0].forward);
  std::vector<std::pair<int, int>> edges;
  for (const PlanEdge& edge : graph.edges) edges.emplace_back(edge.from, edge.to);
  return series_parallel(weights, edges);
}

std::string text(const SeriesParallel& tree, int component) {
  const SeriesParallel::Component& p = tree.components[at(component)];
  if (p.kind == SeriesParallel::Kind::kNode) return std::to_string(p.node);
  const std::string separator = p.kind == SeriesParallel::Kind::kSeries ? " " : " | ";
  return concat("(", join(p.components, separator, [&](int inside) { return text(tree, inside); }), ")");
}

std::string text(const SeriesParallel& tree) {
  return text(tree, static_cast<int>(tree.components.size()) - 1);
}

std::vector<int> nodes_of(const SeriesParallel& tree, int component) {
  const SeriesParallel::Component& p = tree.components[at(component)];
  std::vector<int> nodes;
  if (p.node >= 0) nodes.push_back(p.node);
  for (const int inside : p.components) {
    const std::vector<int> more = nodes_of(tree, inside);
    nodes.insert(nodes.end(), more.begin(), more.end());
  }
  return nodes;
}

// As reach_of(): what the tree puts before what.
std::vector<bool> order_of(const SeriesParallel& tree, int nodes) {
  std::vector<bool> before(at(nodes) * at(nodes));
  for (const SeriesParallel::Component& component : tree.components) {
    if (component.kind != SeriesParallel::Kind::kSeries) continue;
    for (std::size_t i = 0; i < component.components.size(); ++i)
      for (std::size_t j = i + 1; j < component.components.size(); ++j)
        for (const int a : nodes_of(tree, component.components[i]))
          for (const int b : nodes_of(tree, component.components[j])) before[at(a) * at(nodes) + at(b)] = true;
  }
  return before;
}

long ordered_pairs(const std::vector<bool>& order) {
  return std::count(order.begin(), order.end(), true);
}

TEST(SeriesParallelTest, Shapes) {
  EXPECT_EQ(text(tree_of(test::plan_chain({1}))), "0");
  EXPECT_EQ(text(tree_of(test::plan_chain({1, 1, 1}))), "(0 1 2)");
  EXPECT_EQ(text(tree_of(test::plan_graph({1, 1, 1}, {}))), "(0 | 1 | 2)");
  // Two branches of two into a head, with several sources; an edge around a node says nothing new.
  EXPECT_EQ(text(tree_of(test::plan_graph({1, 1, 1, 1, 1}, {{0, 1}, {1, 4}, {2, 3}, {3, 4}, {0, 4}}))), "(((0 1) | (2 3)) 4)");
  // All of two feed all of two: no node joins them, and yet it is a series.
  EXPECT_EQ(text(tree_of(test::plan_graph({1, 1, 1, 1}, {{0, 2}, {0, 3}, {1, 2}, {1, 3}}))), "((0 | 1) (2 | 3))");
  EXPECT_TRUE(tree_of(test::plan_graph({1, 1, 1, 1}, {{0, 2}, {0, 3}, {1, 2}, {1, 3}})).exact);
}

// 0 feeds 2, 1 feeds 2 and 3: three barriers are possible.
TEST(SeriesParallelTest, TheBarrierLengthensTheLongestWayLeast) {
  const auto completed = [](const std::vector<double>& weights) { return tree_of(test::plan_graph(weights, {{0, 2}, {1, 2}, {1, 3}})); };
  EXPECT_FALSE(completed({1, 1, 1, 1}).exact);
  EXPECT_EQ(text(completed({1, 1, 1, 1})), "((0 | 1) (2 | 3))");
  EXPECT_EQ(text(completed({9, 1, 1, 9})), "(1 ((0 2) | 3))");
  // A mask that all layers of a chain read costs nothing when it comes first.
  const PlanGraph masked = test::plan_graph({1, 0, 1, 1, 1}, {{0, 2}, {2, 3}, {3, 4}, {1, 2}, {1, 3}, {1, 4}});
  EXPECT_EQ(text(tree_of(masked)), "((0 | 1) 2 3 4)");
}

TEST(SeriesParallelTest, SeriesParallelGraphsAreTheirOwnTree) {
  for (std::uint64_t seed = 0; seed < test::rounds(300u); ++seed) {
    Random random(seed);
    const int nodes = test::draw(random, 1, 30);
    const PlanGraph graph = test::random_series_parallel(random, {.nodes = nodes, .skip = 0.2});
    const SeriesParallel tree = tree_of(graph);
    EXPECT_TRUE(tree.exact) << "seed " << seed;
    EXPECT_EQ(order_of(tree, nodes), test::reach_of(graph)) << "seed " << seed;
  }
}

TEST(SeriesParallelTest, CompletionsKeepTheOrder) {
  double kept = 0;
  int counted = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    const int nodes = test::draw(random, 2, 24);
    const PlanGraph graph = test::random_plan_graph(random, nodes, test::draw(random, 1, 6) / 12.0);
    const SeriesParallel tree = tree_of(graph);
    const std::vector<bool> before = order_of(tree, nodes), reach = test::reach_of(graph);
    for (std::size_t i = 0; i < reach.size(); ++i) ASSERT_TRUE(before[i] || !reach[i]) << "seed " << seed;
    EXPECT_EQ(tree.exact, before == reach) << "seed " << seed;
    const long all = nodes * (nodes - 1) / 2, open = all - ordered_pairs(reach);
    if (open == 0) continue;
    kept += static_cast<double>(all - ordered_pairs(before)) / static_cast<double>(open);
    ++counted;
  }
  EXPECT_GT(kept / counted, 0.7);  // of the pairs that the graphs leave open
}

TEST(SeriesParallelTest, AThousandNodes) {
  Random random(7);
  EXPECT_TRUE(tree_of(test::random_series_parallel(random, {.nodes = 1000, .skip = 0})).exact);
  EXPECT_FALSE(tree_of(test::random_plan_graph(random, 1000, 0.01)).exact);
  EXPECT_EQ(tree_of(test::plan_chain(std::vector<double>(1000, 1.0))).components.size(), 1001u);
}

}  // namespace
}  // namespace penstock
