// SPDX-License-Identifier: Apache-2.0
// Graphs of more downsets than can be paired.
#include "planners/likely_cuts.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/numbers.h"
#include "planners/planner_list.h"
#include "planners/random_plan.h"
#include "support/plan_graphs.h"
#include "support/rounds.h"

namespace penstock {
namespace {

TEST(LikelyCuts, HoldEachCutOfEveryPlanWithinTheBound) {
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const PlanGraph graph = test::random_plan_graph(random, 1 + static_cast<int>(seed % 6));
    const Downsets sets(graph);
    std::vector<double> work;
    for (const PlanNode& node : graph.nodes) work.push_back(node.costs[0].forward + node.costs[0].backward);
    const CutCosts costs{sets.sums(work), sets.cut_sums(graph, work)};
    const int devices = 1 + static_cast<int>(random() % 4);
    const double bound = costs.work.back() * (1 + test::pick(random, 4) / 4) / devices;
    if (bound == 0) continue;
    const std::vector<int> cuts = possible_cuts(costs, devices, bound);
    std::vector<test::Mask> kept;
    for (const int cut : cuts) {
      kept.push_back(0);
      for (const int node : sets.difference(0, cut)) kept.back() |= test::Mask{1} << node;
    }
    test::each_chain(graph, [&](const std::vector<test::Mask>& chain) {
      double largest = 0;
      for (std::size_t s = 1; s < chain.size(); ++s)
        largest = std::max(largest, test::sum_over(graph, chain[s] & ~chain[s - 1],
                                                   [](const PlanNode& node) { return node.costs[0].forward + node.costs[0].backward; }));
      if (static_cast<int>(chain.size()) > devices + 1 || largest > bound) return;
      for (const test::Mask set : chain) EXPECT_NE(std::find(kept.begin(), kept.end(), set), kept.end());
    });
  }
}

TEST(LikelyCuts, AreSpreadOverTheWorkWhereLeastLeaves) {
  CutCosts costs;
  for (int set = 0; set <= 1000; ++set) {
    costs.work.push_back(set / 10 * 10);
    costs.cut.push_back(set % 10 == 7 ? 1 : 2);
  }
  std::vector<int> all(1001);
  for (std::size_t set = 0; set < all.size(); ++set) all[set] = static_cast<int>(set);
  const std::vector<int> spread = spread_cuts(costs, all, 102);
  EXPECT_LE(spread.size(), 102u);
  EXPECT_EQ(spread.front(), 0);
  EXPECT_EQ(spread.back(), 1000);
  for (std::size_t i = 1; i < spread.size(); ++i) EXPECT_LE(costs.work[at(spread[i])] - costs.work[at(spread[i - 1])], 40);
  EXPECT_GT(std::count_if(spread.begin(), spread.end(), [](int set) { return set % 10 == 7; }), 45);
  EXPECT_EQ(spread_cuts(costs, {0, 500, 1000}, 102), (std::vector<int>{0, 500, 1000}));
}

TEST(LikelyCuts, WholeModulesWithinOnePercentOfExact) {
  for (const int devices : {4, 16}) {
    SCOPED_TRACE(testing::Message() << devices << " devices, seed " << devices);
    std::mt19937_64 random(static_cast<std::uint64_t>(devices));
    PlanProblem problem;
    problem.graph = test::wide_modules(random, devices);
    problem.cluster = uniform_cluster(devices, 1e9);
    problem.replicas = false;
    EXPECT_GT(Downsets(problem.graph, kMostListed).count(), 100'000);
    const PlanOptions unhurried{.seconds = kInfinity};  // both end by themselves, however slow the build and the machine
    EXPECT_LE(plan_by_pipedream(problem, unhurried).bottleneck, 1.01);
    EXPECT_LE(plan_by_max_load(problem, unhurried).bottleneck, 1.01);
  }
}

// However many there are, few are paired; what the second call is given may be the cuts of a plan as good as the first.
TEST(LikelyCuts, FewArePaired) {
  std::mt19937_64 random(3);
  const PlanGraph graph = test::wide_modules(random, 8);
  const Downsets all(graph, kMostListed);
  std::vector<double> work;
  for (const PlanNode& node : graph.nodes) work.push_back(node.costs[0].forward + node.costs[0].backward);
  const CutCosts costs{all.sums(work), all.sums(work)};
  std::vector<int> counts;
  EXPECT_FALSE(search_cuts(all, costs, 8, [&](const Downsets& sets) {
    counts.push_back(sets.count());
    return 1.2;
  }));
  EXPECT_EQ(counts.size(), 3u);
  for (const int count : counts) EXPECT_LE(count, 8'000);
  // Plans that are nearly best have few possible cuts: all of them are paired, and the best plan is proven.
  EXPECT_TRUE(search_cuts(all, costs, 8, [](const Downsets&) { return 1.001; }));
}

}  // namespace
}  // namespace penstock
