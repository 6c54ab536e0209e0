// SPDX-License-Identifier: Apache-2.0
#include "planners/downsets.h"

#include <gtest/gtest.h>

#include <set>

#include "planners/profiles.h"
#include "planners/random_plan.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Mask;

Mask mask_of(const Downsets& sets, int set) {
  Mask mask = 0;
  for (const int node : sets.difference(0, set)) mask |= Mask{1} << node;
  return mask;
}

TEST(Downsets, AreAllOfThemWithTheirSums) {
  for (std::uint64_t seed = 0; seed < test::rounds(50u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const PlanGraph graph = test::random_plan_graph(random, 1 + static_cast<int>(seed % 8));
    const Downsets sets(graph);
    const std::vector<Mask> all = test::all_downsets(graph);
    std::set<Mask> found;
    std::vector<double> values;
    for (const PlanNode& node : graph.nodes) values.push_back(node.output_bytes);
    const std::vector<double> sums = sets.sums(values), cuts = sets.cut_sums(graph, values);
    for (int set = 0; set < sets.count(); ++set) {
      const Mask mask = mask_of(sets, set);
      found.insert(mask);
      EXPECT_EQ(sets.size(set), __builtin_popcount(mask));
      EXPECT_EQ(sums[static_cast<std::size_t>(set)], test::sum_over(graph, mask, [](const PlanNode& node) { return node.output_bytes; }));
      EXPECT_EQ(cuts[static_cast<std::size_t>(set)], test::cut_bytes(graph, mask));
      for (int other = 0; other < sets.count(); ++other) EXPECT_EQ(sets.nested(set, other), (mask & ~mask_of(sets, other)) == 0);
    }
    EXPECT_EQ(found, std::set<Mask>(all.begin(), all.end()));
    EXPECT_EQ(sets.count(), static_cast<int>(all.size()));
  }
}

TEST(Downsets, OfMoreThanOneWord) {
  PlanGraph graph;
  graph.nodes.resize(200);
  for (int i = 1; i < 200; ++i) graph.edges.push_back({i - 1, i});
  const Downsets sets(graph);
  EXPECT_EQ(sets.count(), 201);
  EXPECT_EQ(sets.difference(60, 70), (std::vector<int>{60, 61, 62, 63, 64, 65, 66, 67, 68, 69}));
  EXPECT_TRUE(sets.holds(129, 128));
  EXPECT_FALSE(sets.holds(128, 128));
  EXPECT_TRUE(sets.nested(128, 129));
  EXPECT_FALSE(sets.nested(129, 128));
}

TEST(Downsets, OfOnePathWhereThereAreTooMany) {
  PlanGraph graph;
  graph.nodes.resize(40);
  const Downsets sets(graph);
  EXPECT_FALSE(sets.complete());
  EXPECT_EQ(sets.count(), 41);
  for (int set = 0; set < 40; ++set) EXPECT_EQ(sets.difference(set, set + 1), std::vector<int>{set});
  graph.nodes.resize(15);
  EXPECT_TRUE(Downsets(graph).complete());
  EXPECT_EQ(Downsets(graph).count(), 1 << 15);
  EXPECT_EQ(Downsets(graph, kOnePath).count(), 16);
}

TEST(Downsets, OfSmallGraphsOfEachForm) {
  for (const char* name : {"residual.txt", "layers.json", "colours.json", "towers.json"}) {
    const PlanGraph graph = test::stand_in(name);
    EXPECT_EQ(Downsets(graph).count(), static_cast<int>(test::all_downsets(graph).size())) << name;
  }
}

TEST(Downsets, OnlySomeOfThem) {
  PlanGraph graph;
  graph.nodes.resize(70);
  for (int i = 1; i < 70; ++i) graph.edges.push_back({i - 1, i});
  const Downsets some = Downsets(graph).only({0, 3, 69, 70});
  EXPECT_EQ(some.count(), 4);
  EXPECT_EQ(some.difference(1, 2).size(), 66u);
  EXPECT_EQ(some.all(), (std::vector<int>{0, 1, 2, 3}));
}

TEST(Downsets, OfMeasuredGraphs) {
  if (!test::has_profiles()) GTEST_SKIP();
  EXPECT_EQ(Downsets(test::profile("pipedream-resnet50-graph.txt")).count(), 242);
  EXPECT_EQ(Downsets(test::profile("pipedream-gnmt-graph.txt")).count(), 7874);
  EXPECT_EQ(Downsets(test::profile("piper-bert32a100.json")).count(), 43);
  EXPECT_EQ(Downsets(test::profile("dnn-partitioning-bert24_training.json")).count(), 39);
}

}  // namespace
}  // namespace penstock
