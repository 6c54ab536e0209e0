// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

constexpr int kStages = 4;

// Each node of the chain may keep only its input until its backward, which then computes the forward again.
PlanGraph with_recomputation(PlanGraph chain) {
  for (std::size_t n = 0; n < chain.nodes.size(); ++n) {
    NodeCost again = chain.nodes[n].costs[0];
    again.name = "activation recomp";
    again.backward += again.forward;
    again.live_bytes = n == 0 ? 0 : chain.edges[n - 1].bytes;
    if (again.live_bytes < chain.nodes[n].costs[0].live_bytes) chain.nodes[n].costs.push_back(again);
  }
  return chain;
}

// A chain whose nodes hold more than their outputs, on devices that a few micro-batches fill.
PlanProblem random_chain(std::mt19937_64& random, int nodes) {
  PlanProblem problem = random_problem(random, {.nodes = nodes, .devices = kStages});
  problem.graph.edges.clear();
  for (int i = 0; i + 1 < nodes; ++i)
    problem.graph.edges.push_back({i, i + 1, problem.graph.nodes[static_cast<std::size_t>(i)].output_bytes});
  problem.graph = with_recomputation(problem.graph);
  double bytes = 0;
  for (const PlanNode& node : problem.graph.nodes) bytes += node.costs[0].resident_bytes + 10 * node.costs[0].live_bytes;
  for (ClusterDevice& device : problem.cluster.devices) device.memory = bytes / 3;
  return problem;
}

struct Need {
  double vanilla = 0, lean = 0;  // bytes
};
Need need_of(const PlanGraph& graph, int begin, int end, int samples, int in_flight) {
  Need need;
  for (int n = begin; n < end; ++n) {
    const PlanNode& node = graph.nodes[static_cast<std::size_t>(n)];
    const SetCost all = cost_of(node, 0, samples), least = cost_of(node, static_cast<int>(node.costs.size()) - 1, samples);
    need.vanilla += all.resident_bytes + in_flight * all.live_bytes;
    need.lean += least.resident_bytes + in_flight * least.live_bytes;
  }
  return need;
}

// Whether any cuts fit with all nodes recomputed, from `begin` on in so many stages.
bool any_cut_fits(const PlanProblem& problem, int begin, int stages, int samples) {
  const int n = static_cast<int>(problem.graph.nodes.size());
  if (stages == 0) return begin == n;
  for (int end = begin + 1; end <= n; ++end) {
    if (need_of(problem.graph, begin, end, samples, stages).lean > problem.cluster.devices[0].memory) return false;
    if (any_cut_fits(problem, end, stages - 1, samples)) return true;
  }
  return false;
}

// Whether the cuts with the smallest largest time do, with all recomputed.
bool balanced_fits(const PlanProblem& problem, int samples) {
  const PlanGraph& graph = problem.graph;
  const int n = static_cast<int>(graph.nodes.size());
  const auto seconds = [&](int begin, int end) {
    double sum = 0;
    for (int i = begin; i < end; ++i) sum += 3 * graph.nodes[static_cast<std::size_t>(i)].costs[0].forward;
    return sum;
  };
  double least = std::numeric_limits<double>::infinity();
  bool fits = false;
  for (int a = 1; a < n; ++a)
    for (int b = a + 1; b < n; ++b)
      for (int c = b + 1; c < n; ++c) {
        const int cuts[] = {0, a, b, c, n};
        double largest = 0;
        bool all = true;
        for (int s = 0; s < kStages; ++s) {
          largest = std::max(largest, seconds(cuts[s], cuts[s + 1]));
          all = all && need_of(graph, cuts[s], cuts[s + 1], samples, kStages - s).lean <= problem.cluster.devices[0].memory;
        }
        if (largest < least) fits = all;
        least = std::min(least, largest);
      }
  return fits;
}

PlanProblem with_batch(PlanProblem problem, int samples) {
  problem.batches = {samples};
  problem.samples = 16 * samples;
  return problem;
}

// The largest size up to which all fit.
template <class Fits>
int largest_batch(Fits&& fits) {
  int samples = 0;
  while (samples < 200 && fits(samples + 1)) ++samples;
  return samples;
}

TEST(Dawnpiper, TheLargestMicrobatchOfAllCuts) {
  int more = 0;
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const PlanProblem problem = random_chain(random, 8 + static_cast<int>(random() % 9));
    const int found =
        largest_batch([&](int b) { return message_of([&] { make_plan("dawnpiper", with_batch(problem, b)); }) == "no error"; });
    const int all = largest_batch([&](int b) {
      for (int stages = 1; stages <= kStages; ++stages)
        if (any_cut_fits(problem, 0, stages, b)) return true;
      return false;
    });
    const int balanced = largest_batch([&](int b) { return balanced_fits(problem, b); });
    EXPECT_EQ(found, all);
    EXPECT_GE(found, balanced);
    more += found > balanced;
  }
  EXPECT_GT(more, 0);
}

TEST(Dawnpiper, PeaksAreTheSimulators) {
  for (std::uint64_t seed = 0; seed < test::rounds(30u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const PlanProblem problem = random_chain(random, 16);
    const Plan plan = make_plan("dawnpiper", problem);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      const PlanStage& stage = plan.stages[s];
      const SetCost cost = cost_of(problem.graph, stage.nodes, stage.choices, stage.samples);
      const double bytes = cost.resident_bytes + cost.live_bytes * static_cast<double>(plan.stages.size() - s);
      const double peak = plan.peak_bytes[static_cast<std::size_t>(stage.devices[0])];
      EXPECT_NEAR(peak, bytes, 0.1 * bytes);
      EXPECT_LE(peak, problem.cluster.devices[0].memory * (1 + 1e-9));
    }
  }
}

TEST(Dawnpiper, RecomputesWhatCostsLeast) {
  // It swaps the shorter of nodes with equal bytes; the last device has no need to.
  PlanProblem problem;
  problem.graph = chain_graph({2, 1, 2, 1});
  for (PlanNode& node : problem.graph.nodes) node.costs[0].live_bytes = 10;
  problem.graph = with_recomputation(problem.graph);
  problem.cluster = uniform_cluster(2, 1e9, 0, 30);
  problem.samples = 8;
  const Plan plan = make_plan("dawnpiper", problem);
  ASSERT_EQ(plan.stages.size(), 2u);
  EXPECT_EQ(plan.stages[0].choices, (std::vector<int>{0, 1}));
  EXPECT_EQ(plan.stages[1].choices, (std::vector<int>{0, 0}));
  EXPECT_EQ(plan.bottleneck, 10);
  EXPECT_EQ(plan.peak_bytes, (std::vector<double>{20, 20}));
}

// A chain each of whose nodes may be kept, computed again or swapped over a link to the host that is about as fast as the devices are.
PlanProblem random_choices(std::mt19937_64& random, int nodes) {
  const auto share = [&](double least, double most) { return std::uniform_real_distribution<double>(least, most)(random); };
  PlanProblem problem = random_chain(random, nodes);
  double live = 0, resident = 0, seconds = 0;
  for (PlanNode& node : problem.graph.nodes) {
    NodeCost swapped = node.costs[0];
    swapped.name = "swapped";
    swapped.swap_bytes = share(0.7, 1) * std::exchange(swapped.live_bytes, 0);
    swapped.live_bytes = node.costs[0].live_bytes - swapped.swap_bytes;
    live += node.costs[0].live_bytes;
    resident += node.costs[0].resident_bytes;
    seconds += node.costs[0].forward + node.costs[0].backward;
    node.costs.push_back(swapped);
  }
  problem.cluster = uniform_cluster(kStages, 1e30, 0, (resident + share(1.5, 5) * live) / kStages);
  const double bandwidth = share(0.4, 4) * live / seconds;
  for (ClusterDevice& device : problem.cluster.devices) device.host = {1e-5, bandwidth};
  return problem;
}

// The least time of any ways of the nodes as one stage; infinite: none fits.
double least_stage(const PlanProblem& problem, int begin, int end, int in_flight) {
  const ClusterDevice& device = problem.cluster.devices[0];
  double least = std::numeric_limits<double>::infinity();
  const auto choose = [&](const auto& self, int n, SetCost sum) -> void {
    if (n < end) {
      const PlanNode& node = problem.graph.nodes[static_cast<std::size_t>(n)];
      for (const int way : ways_of(node)) {
        SetCost more = sum;
        self(self, n + 1, more += cost_of(node, way, 1));
      }
    } else if (fits(bytes_of(sum, in_flight), device.memory)) {
      const double copies = sum.swap_bytes > 0 ? 2 * (device.host->latency + sum.swap_bytes / device.host->bandwidth) : 0;
      least = std::min(least, std::max(sum.forward + sum.backward, copies));
    }
  };
  choose(choose, begin, {});
  return least;
}

// The least slowest stage of any cuts, from `begin` on in so many stages.
double least_bottleneck(const PlanProblem& problem, int begin, int stages) {
  const int n = static_cast<int>(problem.graph.nodes.size());
  if (stages == 0) return begin == n ? 0 : std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  for (int end = begin + 1; end <= n - stages + 1; ++end)
    least = std::min(least, std::max(least_stage(problem, begin, end, stages), least_bottleneck(problem, end, stages - 1)));
  return least;
}

// The same of the plan's own cuts.
double least_of_cuts(const PlanProblem& problem, const Plan& plan) {
  double slowest = 0;
  int begin = 0, in_flight = static_cast<int>(plan.stages.size());
  for (const PlanStage& stage : plan.stages) {
    const int end = begin + static_cast<int>(stage.nodes.size());
    slowest = std::max(slowest, least_stage(problem, begin, end, in_flight--));
    begin = end;
  }
  return slowest;
}

int count_of_way(const PlanProblem& problem, const Plan& plan, const std::string& way) {
  int count = 0;
  for (const PlanStage& stage : plan.stages)
    for (std::size_t i = 0; i < stage.nodes.size(); ++i)
      count += problem.graph.nodes[static_cast<std::size_t>(stage.nodes[i])].costs[static_cast<std::size_t>(stage.choices[i])].name == way;
  return count;
}

// Against all ways of all cuts. What does not fit fits in none; mostly it is the best of all, and for its cuts it is always near the best.
TEST(Dawnpiper, KeepsRecomputesAndSwapsAsTheBestOfAllWays) {
  int fitting = 0, best = 0, best_of_cuts = 0, again = 0, swapped = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const PlanProblem problem = random_choices(random, 6 + static_cast<int>(random() % 4));
    Plan plan;
    const std::string message = message_of([&] { plan = make_plan("dawnpiper", problem); });
    if (message != "no error") {
      for (int stages = 1; stages <= kStages; ++stages) EXPECT_TRUE(std::isinf(least_bottleneck(problem, 0, stages))) << message;
      continue;
    }
    constexpr double kRounding = 1 + 1e-9;
    const double least = least_bottleneck(problem, 0, static_cast<int>(plan.stages.size())), of_cuts = least_of_cuts(problem, plan);
    EXPECT_GE(plan.bottleneck * kRounding, least);
    EXPECT_LE(plan.bottleneck, 1.15 * of_cuts);
    ++fitting;
    best += plan.bottleneck <= least * kRounding;
    best_of_cuts += plan.bottleneck <= of_cuts * kRounding;
    again += count_of_way(problem, plan, "activation recomp");
    swapped += count_of_way(problem, plan, "swapped");
  }
  EXPECT_GE(best, 0.85 * fitting);
  EXPECT_GE(best_of_cuts, 0.9 * fitting);
  EXPECT_GT(again, 0);
  EXPECT_GT(swapped, 0);
}

// The first node may be swapped: of three micro-batches in flight two are there then.
PlanProblem swapping_chain() {
  PlanProblem problem;
  problem.graph = chain_graph({1, 1, 1});
  for (PlanNode& node : problem.graph.nodes) node.costs[0].live_bytes = 10;
  NodeCost swapped = problem.graph.nodes[0].costs[0];
  swapped.name = "swapped";
  swapped.swap_bytes = std::exchange(swapped.live_bytes, 0);
  problem.graph.nodes[0].costs.push_back(swapped);
  problem.cluster = uniform_cluster(3, 1e9, 0, 20);
  problem.samples = 8;
  return problem;
}

TEST(Dawnpiper, SwapsGoBesideTheWork) {
  PlanProblem problem = swapping_chain();
  for (ClusterDevice& device : problem.cluster.devices) device.host = {0, 20};
  Plan plan = make_plan("dawnpiper", problem);
  ASSERT_EQ(plan.stages.size(), 3u);
  EXPECT_EQ(plan.stages[0].choices, std::vector<int>{1});
  EXPECT_EQ(plan.bottleneck, 3);  // 10 bytes there and back take 1
  EXPECT_EQ(plan.peak_bytes, (std::vector<double>{20, 20, 10}));
  EXPECT_NE(print(plan.schedule).find("0OFFLOAD0"), std::string::npos);
  EXPECT_EQ(print(plan.schedule).find("1OFFLOAD0"), std::string::npos);
  const double beside = plan.predicted_time;
  for (ClusterDevice& device : problem.cluster.devices) device.host = {0.5, 5};
  plan = make_plan("dawnpiper", problem);
  EXPECT_EQ(plan.bottleneck, 5);
  EXPECT_GE(plan.predicted_time, beside + 8);  // each of most micro-batches waits for 2 more
}

TEST(Dawnpiper, SwapsAreRefusedWhereNothingCountsThem) {
  PlanProblem problem = swapping_chain();
  const std::string refused = message_of([&] { make_plan("pipedream", problem); });
  EXPECT_NE(refused.find("has a way that swaps 10.0 bytes\n  planner pipedream counts no copies to the host's memory"), std::string::npos)
      << refused;
  for (const PlanStage& stage : make_plan("dawnpiper", problem).stages)  // without a link to the host it swaps nothing
    EXPECT_EQ(stage.choices, std::vector<int>(stage.nodes.size(), 0));
  const PlannerInfo mine{.name = "mine",
                         .summary = "",
                         .plan =
                             [](const PlanProblem&, const PlanOptions&) {
                               Plan plan;
                               plan.stages = {{.nodes = {0, 1, 2}, .choices = {1, 0, 0}, .devices = {0}}};
                               return plan;
                             },
                         .lean_ways = true};
  problem.cluster = uniform_cluster(1, 1e9);
  const std::string message = message_of([&] { make_plan(mine, problem); });
  EXPECT_NE(message.find("stage 0 swaps what node 0 \"n0\" reads\n  nothing says which link its devices have to their host's memory"),
            std::string::npos)
      << message;
}

TEST(Dawnpiper, BranchesAndUnequalDevices) {
  expect_plans_or_least_memory("dawnpiper", {.nodes = 10}, 60);
}

}  // namespace
}  // namespace penstock::test
