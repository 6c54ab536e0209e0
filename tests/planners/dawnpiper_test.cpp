#include <gtest/gtest.h>

#include <algorithm>

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
  // Of equal bytes the shorter nodes; the last device has no need to.
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

TEST(Dawnpiper, BranchesAndUnequalDevices) {
  expect_plans_or_least_memory("dawnpiper", {.nodes = 10}, 60);
}

}  // namespace
}  // namespace penstock::test
