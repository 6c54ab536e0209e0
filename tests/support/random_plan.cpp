// SPDX-License-Identifier: Apache-2.0
#include "support/random_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "support/errors.h"

namespace penstock::test {
namespace {

int uniform(std::mt19937_64& random, int least, int most) {
  return std::uniform_int_distribution<int>(least, most)(random);
}
double uniform(std::mt19937_64& random, double least, double most) {
  return std::uniform_real_distribution<double>(least, most)(random);
}

// Edges of a series-parallel graph over the nodes [begin, end); the first is its only source and the last its only sink.
void add_series_parallel(std::mt19937_64& random, int begin, int end, std::vector<PlanEdge>& edges) {
  const int inner = end - begin - 2;
  if (inner < 0) return;
  if (inner == 0) return edges.push_back({begin, begin + 1, 0});
  if (uniform(random, 0, 2) == 0) {  // in series
    const int middle = uniform(random, begin + 1, end - 2);
    add_series_parallel(random, begin, middle + 1, edges);
    add_series_parallel(random, middle, end, edges);
    return;
  }
  for (int at = begin + 1; at < end - 1;) {  // branches, each a chain
    const int next = at + uniform(random, 1, end - 1 - at);
    edges.push_back({begin, at, 0});
    for (int node = at; node + 1 < next; ++node) edges.push_back({node, node + 1, 0});
    edges.push_back({next - 1, end - 1, 0});
    at = next;
  }
}

std::vector<PlanEdge> random_edges(std::mt19937_64& random, const RandomProblem& of) {
  std::vector<PlanEdge> edges;
  if (of.series_parallel) {
    add_series_parallel(random, 0, of.nodes, edges);
    return edges;
  }
  const int often = uniform(random, 1, 4);
  for (int to = 1; to < of.nodes; ++to)
    for (int from = std::max(0, to - 4); from < to; ++from)
      if (from == to - 1 ? uniform(random, 0, 3) > 0 : uniform(random, 0, often) == 0) edges.push_back({from, to, 0});
  return edges;
}

std::vector<NodeCost> random_costs(std::mt19937_64& random, const RandomProblem& of) {
  std::vector<NodeCost> costs;
  const double work = uniform(random, 0.2e-3, 2e-3), fixed = work * uniform(random, 0.0, 0.5);
  const double live = uniform(random, 1e6, 10e6), resident = uniform(random, 1e6, 30e6);
  const double update = of.updates ? work * uniform(random, 0.0, 24.0) : 0;
  for (const bool again : {false, true}) {
    if (again && !of.ways) continue;
    for (const int samples : {1, 2, 4}) {
      if (samples > 1 && !of.batches) continue;
      NodeCost& cost = costs.emplace_back();
      cost.name = again ? "activation recomp" : "vanilla";
      cost.samples = samples;
      cost.forward = fixed + work * samples;
      cost.backward = (again ? 3 : 2) * cost.forward;
      cost.live_bytes = (again ? 0.2 : 1) * live * samples;
      cost.resident_bytes = 4 * resident;
      cost.parameter_bytes = resident;
      cost.update = update;
    }
  }
  return costs;
}

}  // namespace

PlanNode plan_node(const std::string& name, double forward, double live, double resident) {
  PlanNode node;
  node.name = name;
  node.costs = {{.forward = forward, .backward = 2 * forward, .live_bytes = live, .resident_bytes = resident}};
  return node;
}

std::vector<PlanStage> stages_on_own_devices(const std::vector<std::vector<int>>& nodes) {
  std::vector<PlanStage> stages;
  for (std::size_t s = 0; s < nodes.size(); ++s) stages.push_back({.nodes = nodes[s], .devices = {static_cast<int>(s)}});
  return stages;
}

PlanGraph chain_graph(const std::vector<double>& forward, double bytes) {
  PlanGraph graph;
  graph.name = "chain";
  for (std::size_t i = 0; i < forward.size(); ++i) {
    graph.nodes.push_back(plan_node("n" + std::to_string(i), forward[i]));
    if (i > 0) graph.edges.push_back({static_cast<int>(i) - 1, static_cast<int>(i), bytes});
  }
  return graph;
}

TimeLimit& no_limit() {
  static TimeLimit limit;  // shared, as it has no state that changes
  return limit;
}

PlanProblem problem_of(PlanGraph graph, ClusterSpec cluster, int samples) {
  PlanProblem problem;
  problem.graph = std::move(graph);
  problem.cluster = std::move(cluster);
  problem.samples = samples;
  return problem;
}

PlanProblem random_problem(std::mt19937_64& random, const RandomProblem& of) {
  PlanProblem problem;
  problem.graph.name = "random";
  for (int n = 0; n < of.nodes; ++n) {
    PlanNode& node = problem.graph.nodes.emplace_back();
    node.name = "n" + std::to_string(n);
    node.costs = random_costs(random, of);
    node.output_bytes = uniform(random, 0.1e6, 2e6);
  }
  problem.graph.edges = random_edges(random, of);
  for (PlanEdge& edge : problem.graph.edges) edge.bytes = problem.graph.nodes[static_cast<std::size_t>(edge.from)].output_bytes;
  problem.cluster = uniform_cluster(of.devices, 10e9, 5e-6);
  if (of.unequal) {
    for (ClusterDevice& device : problem.cluster.devices) device.speed = uniform(random, 0.5, 2.0);
    for (int a = 0; a < of.devices; ++a)
      for (int b = a + 1; b < of.devices; ++b) problem.cluster.between[{a, b}] = {uniform(random, 1e-6, 20e-6), uniform(random, 1e9, 20e9)};
  }
  problem.samples = 16;
  problem.replicas = of.replicas;
  return problem;
}

void expect_plans_or_least_memory(const std::string& planner, RandomProblem of, std::uint64_t seeds) {
  of.unequal = of.ways = of.batches = true;
  const bool replicas = of.replicas;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    of.devices = 2 + static_cast<int>(random() % 9);
    of.series_parallel = random() % 2 == 0;
    of.replicas = replicas && random() % 2 == 0;
    PlanProblem problem = random_problem(random, of);
    for (ClusterDevice& device : problem.cluster.devices) device.memory = 1e6 * uniform(random, 120.0, 400.0);
    const std::string error = message_of([&] { make_plan(planner, problem); });  // make_plan checks the plan
    if (error != "no error") {
      EXPECT_NE(error.find("the smallest memory of each device that would do is"), std::string::npos) << error;
    }
  }
}

std::vector<PlanStage> random_stages(std::mt19937_64& random, const PlanProblem& problem) {
  // Cuts a random topological order into pieces.
  const int nodes = static_cast<int>(problem.graph.nodes.size()), devices = static_cast<int>(problem.cluster.devices.size());
  std::vector<int> order, waits(static_cast<std::size_t>(nodes), 0), ready;
  for (const PlanEdge& edge : problem.graph.edges) ++waits[static_cast<std::size_t>(edge.to)];
  for (int n = 0; n < nodes; ++n)
    if (waits[static_cast<std::size_t>(n)] == 0) ready.push_back(n);
  while (!ready.empty()) {
    std::swap(ready[static_cast<std::size_t>(uniform(random, 0, static_cast<int>(ready.size()) - 1))], ready.back());
    const int node = order.emplace_back(ready.back());
    ready.pop_back();
    for (const PlanEdge& edge : problem.graph.edges)
      if (edge.from == node && --waits[static_cast<std::size_t>(edge.to)] == 0) ready.push_back(edge.to);
  }
  std::vector<int> places(static_cast<std::size_t>(devices));
  std::iota(places.begin(), places.end(), 0);
  std::shuffle(places.begin(), places.end(), random);
  const std::vector<int> sizes = allowed_batches(problem);
  const int count = uniform(random, 1, std::min(nodes, devices));
  std::vector<PlanStage> stages(static_cast<std::size_t>(count));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    PlanStage& stage = stages[s];
    const auto begin = order.begin() + static_cast<int>(s) * nodes / count, end = order.begin() + (static_cast<int>(s) + 1) * nodes / count;
    stage.nodes.assign(begin, end);
    std::sort(stage.nodes.begin(), stage.nodes.end());
    stage.choices.assign(stage.nodes.size(), 0);
    for (int replica = problem.replicas ? uniform(random, 1, devices - count + 1) : 1; replica > 0; --replica) {
      if (static_cast<int>(places.size()) < count - static_cast<int>(s)) break;
      stage.devices.push_back(places.back());
      places.pop_back();
    }
    stage.samples = sizes[static_cast<std::size_t>(uniform(random, 0, static_cast<int>(sizes.size()) - 1))];
  }
  return stages;
}

}  // namespace penstock::test
