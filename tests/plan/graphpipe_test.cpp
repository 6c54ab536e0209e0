// GraphPipe's planner against its logs, brute force, and itself on the nodes in a row.
#include "plan/graphpipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <numeric>
#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "plan/cost_model.h"
#include "plan/evaluate.h"
#include "plan/iteration_time.h"
#include "support/errors.h"
#include "support/plan_graphs.h"
#include "support/random_schedule.h"

namespace penstock {
namespace {

using test::Random;

std::size_t at(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

PlanProblem problem_of(PlanGraph graph, int devices, int samples, double memory = std::numeric_limits<double>::infinity()) {
  PlanProblem problem{.graph = std::move(graph), .cluster = uniform_cluster(devices, 1e9, 0, memory), .samples = samples};
  return problem;
}

std::vector<double> peaks(const Plan& plan) {
  std::vector<double> bytes;
  for (const PlanStage& stage : plan.stages) bytes.push_back(plan.peak_bytes[at(stage.devices[0])]);
  return bytes;
}

TEST(GraphpipeTest, TwoBranchesAndAHead) {
  PlanProblem problem = problem_of(test::plan_graph({1, 1, 1, 1, 1}, {{0, 1}, {1, 4}, {2, 3}, {3, 4}}), 5, 8);
  problem.replicas = false;
  const Plan plan = make_plan("graphpipe", problem);
  EXPECT_EQ(plan.predicted_time, 30);
  EXPECT_DOUBLE_EQ(plan.bottleneck, 3);
  EXPECT_EQ(peaks(plan), (std::vector<double>{3, 2, 3, 2, 1}));
  problem.graph = test::in_a_row(problem.graph);
  const Plan row = make_plan("graphpipe", problem);
  EXPECT_EQ(row.predicted_time, 36);
  EXPECT_EQ(peaks(row), (std::vector<double>{5, 4, 3, 2, 1}));
}

// --- brute force ---

// T of stages of a partition, by the formula; infinite where they do not fit. Written from the description, not from the planner.
double time_of(const PlanProblem& problem, std::vector<PlanStage>& stages, double least_so_far) {
  const PlanGraph& graph = problem.graph;
  const StageShape shape = shape_of(graph, stages);
  const ClusterLink link = problem.cluster.link(0, 1);
  const int samples = step_samples(problem);
  std::vector<int> stage_of(graph.nodes.size()), sizes;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const int node : stages[s].nodes) stage_of[at(node)] = static_cast<int>(s);
  std::vector<double> per_sample;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const PlanStage& stage = stages[s];
    const double replicas = stage.replicas();
    const SetCost cost = cost_of(graph, stage.nodes, stage.choices, stage.samples / replicas);
    std::set<int> in, out;
    for (const PlanEdge& edge : graph.edges) {
      const int from = stage_of[at(edge.from)], to = stage_of[at(edge.to)];
      if (from == static_cast<int>(s) && to != from) out.insert(edge.from);
      if (to == static_cast<int>(s) && to != from) in.insert(edge.from);
    }
    double bytes = 0;
    for (const auto* border : {&in, &out})
      for (const int node : *border) bytes += graph.nodes[at(node)].output_bytes * stage.samples / replicas;
    const double transfers = bytes / link.bandwidth + link.latency * (!in.empty() + !out.empty());
    const double reduce = all_reduce_seconds(problem.cluster, stage.devices, cost.parameter_bytes) / samples;
    per_sample.push_back((cost.forward + cost.backward + transfers) / stage.samples + reduce);
    sizes.push_back(stage.samples);
  }
  const double time = iteration_time(shape, sizes, per_sample, samples, *std::max_element(per_sample.begin(), per_sample.end()));
  if (time >= least_so_far) return time;
  const std::vector<int> in_flight = graphpipe_in_flight(shape, sizes);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const SetCost cost = cost_of(graph, stages[s].nodes, stages[s].choices, static_cast<double>(sizes[s]) / stages[s].replicas());
    const int batches = (in_flight[s] + sizes[s] - 1) / sizes[s];
    if (cost.resident_bytes + batches * cost.live_bytes > problem.cluster.devices[0].memory) return std::numeric_limits<double>::infinity();
  }
  return time;
}

// Gives each stage devices and a size in every way.
void for_each_option(const PlanProblem& problem, std::vector<PlanStage>& stages, std::size_t s, int device, const std::vector<int>& sizes,
                     const std::function<void()>& visit) {
  if (s == stages.size()) return visit();
  const int left = !problem.replicas ? 1 : static_cast<int>(problem.cluster.devices.size()) - device - static_cast<int>(stages.size() - s - 1);
  for (int r = 1; r <= left; ++r)
    for (const int size : sizes) {
      if (sizes.size() > 1 && size % r != 0) continue;
      stages[s].devices.resize(at(r));
      std::iota(stages[s].devices.begin(), stages[s].devices.end(), device);
      stages[s].samples = size;
      for_each_option(problem, stages, s + 1, device + r, sizes, visit);
    }
}

// Puts the stages in an order in which what feeds a stage stands before it; false: there is none.
bool order_stages(const PlanGraph& graph, std::vector<PlanStage>& stages) {
  std::vector<PlanStage> ordered;
  while (!stages.empty()) {
    bool moved = false;
    for (std::size_t s = 0; s < stages.size() && !moved; ++s) {
      const bool waits = std::any_of(graph.edges.begin(), graph.edges.end(), [&](const PlanEdge& edge) {
        const auto has = [&](const PlanStage& stage, int node) { return std::count(stage.nodes.begin(), stage.nodes.end(), node) > 0; };
        return has(stages[s], edge.to) && !has(stages[s], edge.from) &&
               std::any_of(stages.begin(), stages.end(), [&](const PlanStage& other) { return has(other, edge.from); });
      });
      if (waits) continue;
      ordered.push_back(stages[s]);
      stages.erase(stages.begin() + static_cast<std::ptrdiff_t>(s));
      moved = true;
    }
    if (!moved) return false;
  }
  stages = std::move(ordered);
  return true;
}

// The least T over all partitions into stages that do not feed each other in a circle.
double brute_force(const PlanProblem& problem) {
  const std::vector<int> sizes = allowed_batches(problem);
  double best = std::numeric_limits<double>::infinity();
  std::vector<std::vector<int>> sets;
  const std::function<void(int)> place = [&](int node) {
    if (node < static_cast<int>(problem.graph.nodes.size())) {
      for (std::size_t s = 0; s <= sets.size(); ++s) {
        if (s == sets.size() && s == problem.cluster.devices.size()) break;
        if (s == sets.size()) sets.emplace_back();
        sets[s].push_back(node);
        place(node + 1);
        sets[s].pop_back();
        if (sets.back().empty()) sets.pop_back();
      }
      return;
    }
    std::vector<PlanStage> stages;
    for (const std::vector<int>& set : sets) {
      stages.emplace_back().nodes = set;
      stages.back().choices.assign(set.size(), 0);
    }
    if (!order_stages(problem.graph, stages)) return;
    for_each_option(problem, stages, 0, 0, sizes, [&] { best = std::min(best, time_of(problem, stages, best)); });
  };
  place(0);
  return best;
}

TEST(GraphpipeTest, TheFormulasBestIsNearBruteForce) {
  int exact = 0, near = 0, all = 0;
  double worst = 1;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    const int nodes = test::draw(random, 3, 7), devices = test::draw(random, 2, 4);
    PlanProblem problem = problem_of(test::random_series_parallel(random, {.nodes = nodes, .batches = test::coin(random, 0.3)}), devices,
                                     4 * test::draw(random, 1, 8));
    problem.replicas = test::coin(random, 0.4);
    const double memory = std::getenv("GPMEM") ? test::draw(random, 10, 60): 1e9;
    problem.cluster = uniform_cluster(devices, test::coin(random, 0.5) ? 1e9 : 8, test::coin(random, 0.5) ? 0 : 0.125, memory);
    const double best = brute_force(problem);
    if (best > 1e30) {
       std::printf("%d %s\n", (int)seed, test::message_of([&] { graphpipe_plans(problem, 60); }).c_str());
       continue;
    }
    const GraphpipePlans plans = graphpipe_plans(problem, 60);
    double time = std::numeric_limits<double>::infinity();
    for (const auto* kind : {&plans.branched, &plans.in_a_row})
      if (!kind->empty()) time = std::min(time, kind->front().time);
    EXPECT_GE(time, best * (1 - 1e-6)) << "seed " << seed;
    exact += time <= best * (1 + 1e-6);
    near += time <= best * 1.01;
    worst = std::max(worst, time / best);
    if (time > best * 1.01) std::printf("seed %d: %g of %g\n", static_cast<int>(seed), time, best);
    ++all;
  }
  std::printf("%d of %d exact, %d within 1 %%, worst %g\n", exact, all, near, worst);
}

}  // namespace
}  // namespace penstock
