// SPDX-License-Identifier: Apache-2.0
// GraphPipe's planner against its logs, brute force, and itself on the nodes in a row.
#include "planners/graphpipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "cost/iteration_time.h"
#include "planners/profiles.h"
#include "support/errors.h"
#include "support/paths.h"
#include "support/plan_graphs.h"
#include "support/random_plan.h"
#include "support/random_schedule.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Random;

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
  const Plan plan = make_plan("graphpipe", problem, {.seconds = 600});
  EXPECT_EQ(plan.predicted_time, 30);
  EXPECT_DOUBLE_EQ(plan.bottleneck, 3);
  EXPECT_EQ(peaks(plan), (std::vector<double>{3, 2, 3, 2, 1}));
  problem.graph = test::in_a_row(problem.graph);
  const Plan row = make_plan("graphpipe", problem, {.seconds = 600});
  EXPECT_EQ(row.predicted_time, 36);
  EXPECT_EQ(peaks(row), (std::vector<double>{5, 4, 3, 2, 1}));
}

// --- the authors' logs ---

struct LoggedPlan {
  StageShape shape;
  std::vector<int> sizes, groups, in_flight;  // groups: samples of as many forwards as stand together
  std::vector<double> per_sample;
};

LoggedPlan logged(const nlohmann::json& plan) {
  LoggedPlan out;
  // Stages in the file feed others in any order: they are numbered anew, by how far they are from the end.
  const auto& stages = plan.at("stages");
  std::vector<int> distance(stages.size(), 0), order(stages.size());
  for (std::size_t round = 0; round < stages.size(); ++round)
    for (const auto& edge : plan.at("edges")) {
      int& from = distance[edge[0].get<std::size_t>()];
      from = std::max(from, distance[edge[1].get<std::size_t>()] + 1);
    }
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return distance[at(a)] > distance[at(b)]; });
  out.shape.predecessors.resize(stages.size());
  for (const auto& edge : plan.at("edges")) {
    const auto place = [&](const nlohmann::json& stage) { return std::find(order.begin(), order.end(), stage.get<int>()) - order.begin(); };
    out.shape.predecessors[at(place(edge[1]))].push_back(static_cast<std::int32_t>(place(edge[0])));
  }
  for (const int s : order) {
    const auto& stage = stages.at(at(s));
    out.sizes.push_back(stage.at("micro_batch"));
    out.groups.push_back(stage.at("k"));
    out.in_flight.push_back(stage.at("in_flight"));
    out.per_sample.push_back(stage.value("time_per_sample", 0.0));
  }
  return out;
}

void expect_logged(const nlohmann::json& plans) {
  for (const char* list : {"timed", "in_flight_only"})
    for (const auto& plan : plans.at(list)) {
      const LoggedPlan stages = logged(plan);
      EXPECT_EQ(graphpipe_in_flight(stages.shape, stages.groups), stages.in_flight) << plan.at("name");
      if (!plan.contains("iteration_time")) continue;
      const double time =
          iteration_time(stages.shape, stages.sizes, stages.per_sample, plan.at("mini_batch"), plan.at("bottleneck_threshold"));
      EXPECT_NEAR(time, plan.at("iteration_time"), 0.1) << plan.at("name");
    }
}

TEST(GraphpipeTest, PlansByHand) {
  expect_logged(nlohmann::json::parse(read_file(test::stand_in_path("plans.json"))));
}

TEST(GraphpipeTest, LoggedPlans) {
  if (!test::has_profiles()) GTEST_SKIP() << "no profiles beside the project";
  const nlohmann::json plans = nlohmann::json::parse(read_file(test::profile_path("graphpipe/plans.json")));
  ASSERT_EQ(plans.at("timed").size() + plans.at("in_flight_only").size(), 8u);
  expect_logged(plans);
}

TEST(GraphpipeTest, InFlightWithSizesOfTheirOwn) {
  EXPECT_EQ(graphpipe_in_flight(chain(3), {1, 2, 4}), (std::vector<int>{10, 8, 4}));
  EXPECT_EQ(graphpipe_in_flight(chain(3), {4, 4, 4}), (std::vector<int>{12, 8, 4}));
  // Whole micro-batches: 4 and 128 before them are two of 128, and these with 64 more are six of 64.
  EXPECT_EQ(graphpipe_in_flight(chain(3), {64, 128, 4}), (std::vector<int>{384, 256, 4}));
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
  const int left =
      !problem.replicas ? 1 : static_cast<int>(problem.cluster.devices.size()) - device - static_cast<int>(stages.size() - s - 1);
  for (int r = 1; r <= left; ++r)
    for (const int size : sizes) {
      if (sizes.size() > 1 && size % r != 0) continue;
      stages[s].devices.resize(at(r));
      std::iota(stages[s].devices.begin(), stages[s].devices.end(), device);
      stages[s].samples = size;
      for_each_option(problem, stages, s + 1, device + r, sizes, visit);
    }
}

// The least T over all partitions into stages that do not feed each other in a circle.
double brute_force(const PlanProblem& problem) {
  const std::vector<int> sizes = allowed_batches(problem);
  double least = std::numeric_limits<double>::infinity();
  std::vector<std::vector<int>> sets;
  const auto try_sets = [&] {
    std::vector<PlanStage> stages;
    for (const std::vector<int>& set : sets) {
      stages.emplace_back().nodes = set;
      stages.back().choices.assign(set.size(), 0);
    }
    if (!order_stages(problem.graph, stages)) return;
    for_each_option(problem, stages, 0, 0, sizes, [&] { least = std::min(least, time_of(problem, stages, least)); });
  };
  const std::function<void(int)> place = [&](int node) {
    if (node == static_cast<int>(problem.graph.nodes.size())) return try_sets();
    for (std::size_t s = 0; s <= sets.size(); ++s) {
      if (s == sets.size() && s == problem.cluster.devices.size()) break;
      if (s == sets.size()) sets.emplace_back();
      sets[s].push_back(node);
      place(node + 1);
      sets[s].pop_back();
      if (sets.back().empty()) sets.pop_back();
    }
  };
  place(0);
  return least;
}

double least_time(const GraphpipePlans& plans) {
  double time = std::numeric_limits<double>::infinity();
  for (const auto* kind : {&plans.branched, &plans.in_a_row})
    if (!kind->empty()) time = std::min(time, kind->front().time);
  return time;
}

// Half of the graphs are not series-parallel.
PlanProblem random_problem(Random& random, bool memory) {
  const int nodes = test::draw(random, 3, 8), devices = test::draw(random, 2, 4);
  PlanProblem problem =
      problem_of(test::coin(random, 0.5) ? test::random_plan_graph(random, nodes, 0.35)
                                         : test::random_series_parallel(random, {.nodes = nodes, .batches = test::coin(random, 0.3)}),
                 devices, 4 * test::draw(random, 1, 8));
  problem.replicas = test::coin(random, 0.4);
  problem.cluster = uniform_cluster(devices, test::coin(random, 0.5) ? 1e9 : 8, test::coin(random, 0.5) ? 0 : 0.125,
                                    memory ? test::draw(random, 10, 60) : std::numeric_limits<double>::infinity());
  return problem;
}

TEST(GraphpipeTest, TheFormulasBestIsThatOfBruteForce) {
  for (std::uint64_t seed = 0; seed < test::rounds(250u); ++seed) {
    Random random(seed);
    const PlanProblem problem = random_problem(random, false);
    const double least = brute_force(problem);
    EXPECT_NEAR(least_time(graphpipe_plans(problem, test::no_limit())), least, 1e-6 * least) << "seed " << seed;
  }
}

TEST(GraphpipeTest, WithinTheMemory) {
  int lacking = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(250u); ++seed) {
    Random random(seed);
    const PlanProblem problem = random_problem(random, true);
    const double least = brute_force(problem);
    Plan plan;
    const std::string message = test::message_of([&] { plan = make_plan("graphpipe", problem, {.seconds = 600}); });
    for (std::size_t d = 0; d < plan.peak_bytes.size(); ++d) EXPECT_LE(plan.peak_bytes[d], problem.cluster.devices[d].memory) << seed;
    if (std::isinf(least)) {
      ++lacking;  // with fewer in flight it may still fit
      continue;
    }
    EXPECT_EQ(message, "no error") << "seed " << seed;
    EXPECT_NEAR(least_time(graphpipe_plans(problem, test::no_limit())), least, 1e-6 * least) << "seed " << seed;
  }
  EXPECT_GT(lacking, test::rounds(20));
}

std::vector<std::vector<int>> nodes_of(const Plan& plan) {
  std::vector<std::vector<int>> nodes;
  for (const PlanStage& stage : plan.stages) nodes.push_back(stage.nodes);
  std::ranges::sort(nodes);
  return nodes;
}

// Two stages that both have nodes of both branches: no other split of these nodes on three devices is even.
TEST(GraphpipeTest, BranchesShareStages) {
  PlanProblem problem = problem_of(test::plan_graph({2, 1, 2, 3, 4}, {{0, 1}, {1, 4}, {2, 3}, {3, 4}}), 3, 16);
  problem.replicas = false;
  EXPECT_EQ(nodes_of(make_plan("graphpipe", problem, {.seconds = 600})), (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4}}));
}

// Small changes find what the lines miss, where a graph has too many splits to try all.
TEST(GraphpipeTest, SmallChangesImproveLargerGraphs) {
  int better = 0;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Random random(seed);
    PlanProblem problem = problem_of(test::random_plan_graph(random, 12, 0.2), 4, 16);
    problem.replicas = false;
    const GraphpipePlans plans = graphpipe_plans(problem, test::no_limit());
    double by_lines = plans.in_a_row.front().time;
    if (plans.branched.size() > 1) by_lines = std::min(by_lines, plans.branched[1].time);
    EXPECT_LE(plans.branched.front().time, by_lines) << "seed " << seed;
    better += plans.branched.front().time < 0.99 * by_lines;
  }
  EXPECT_GE(better, 3);
}

TEST(GraphpipeTest, UnequalBranchesHaveUnequalNumbersOfDevices) {
  PlanProblem problem = problem_of(test::plan_graph({3, 1, 2}, {{0, 2}, {1, 2}}), 6, 48, 16);
  for (PlanNode& node : problem.graph.nodes) node.costs[0].resident_bytes = 10;  // a device holds one of them
  std::map<std::vector<int>, std::size_t> devices;
  for (const PlanStage& stage : make_plan("graphpipe", problem, {.seconds = 600}).stages) devices[stage.nodes] = stage.devices.size();
  EXPECT_EQ(devices, (std::map<std::vector<int>, std::size_t>{{{0}, 3}, {{1}, 1}, {{2}, 2}}));
}

// --- against the nodes in a row ---

ClusterSpec committed_cluster(int devices) {
  const std::string name = concat("v100-", devices, ".toml");
  return parse_cluster(read_file(concat(test::tests_folder(), "/../examples/clusters/", name)), name);
}

// Simulated, of the same planner on the nodes in a row, divided by that of the graph.
double gain_of(PlanProblem problem) {
  const double time = make_plan("graphpipe", problem, {.seconds = 600}).predicted_time;
  problem.graph = test::in_a_row(problem.graph);
  return make_plan("graphpipe", problem, {.seconds = 600}).predicted_time / time;
}

void expect_gain(const PlanGraph& graph, int devices, double gain) {
  PlanProblem problem = problem_of(graph, devices, 64 * devices);
  problem.cluster = committed_cluster(devices);
  problem.batches = {8, 32, 64};
  EXPECT_GE(gain_of(problem), gain) << graph.name << " on " << devices;
}
// A few micro-batches: depth is most of the step.
void expect_gain_of_depth(const PlanGraph& graph, int devices, double gain) {
  PlanProblem problem = problem_of(graph, devices, 32);
  problem.cluster = committed_cluster(devices);
  problem.batches = {4};
  problem.replicas = false;
  EXPECT_GE(gain_of(problem), gain) << graph.name << " on " << devices;
}

TEST(GraphpipeTest, BranchesNeverCostTime) {
  for (std::uint64_t seed = 0; seed < test::rounds(100u); ++seed) {
    Random random(seed);
    EXPECT_GE(gain_of(random_problem(random, false)), 1 - 1e-9) << "seed " << seed;
  }
}

TEST(GraphpipeTest, ThreeTowersAreFasterThanInARow) {
  for (const int devices : {4, 8}) {
    expect_gain(test::stand_in("towers.json"), devices, 1);
    expect_gain_of_depth(test::stand_in("towers.json"), devices, 1.1);
  }
}

TEST(GraphpipeTest, NeverSlowerThanInARow) {
  if (!test::has_profiles()) GTEST_SKIP() << "no profiles beside the project";
  // Every branch of the transformer takes a device or its replicas, and DLRM is bound by its first layer after the branches.
  const std::vector<std::pair<std::string, double>> models = {{"candle_uno", 1.1}, {"mmt", 1}, {"dlrm", 1}};
  for (const auto& [name, gain] : models)
    for (const int devices : {4, 8, 16, 32}) expect_gain(test::profile("graphpipe/" + name + ".json"), devices, gain);
}

TEST(GraphpipeTest, FasterWhereDepthBinds) {
  if (!test::has_profiles()) GTEST_SKIP() << "no profiles beside the project";
  for (const char* name : {"candle_uno", "mmt", "dlrm"})
    for (const int devices : {8, 16, 32}) expect_gain_of_depth(test::profile(concat("graphpipe/", name, ".json")), devices, 1.1);
}

// The paper's case study: two branches of eight layers and a head on eight devices. Half as deep, so about half as many in flight, so twice
// the micro-batch in the same memory, which is cheaper for a sample.
TEST(GraphpipeTest, MemoryThatDepthLeavesGoesToLargerMicroBatches) {
  std::vector<std::pair<int, int>> edges;
  for (int i = 0; i < 16; ++i) edges.emplace_back(i, i % 8 == 7 ? 16 : i + 1);
  std::vector<double> forward(17, 1.0);
  forward.back() = 0.01;
  PlanProblem problem = problem_of(test::plan_graph(forward, edges), 8, 64, 2 * 5 * 4);
  problem.replicas = false;
  for (PlanNode& node : problem.graph.nodes) {
    for (const int samples : {2, 4}) node.costs.push_back(node.costs[0]), node.costs.back().samples = samples;
    for (NodeCost& cost : node.costs) {
      cost.live_bytes = cost.samples;
      cost.forward *= 0.5 + 0.5 * cost.samples;
      cost.backward = 2 * cost.forward;
    }
  }
  const auto largest = [](const PlanProblem& p) {
    int samples = 0;
    for (const PlanStage& stage : make_plan("graphpipe", p, {.seconds = 600}).stages) samples = std::max(samples, stage.samples);
    return samples;
  };
  PlanProblem row = problem;
  row.graph = test::in_a_row(problem.graph);
  EXPECT_EQ(largest(problem), 4);
  EXPECT_EQ(make_plan("graphpipe", row, {.seconds = 600}).stages.front().samples, 2);
  const double gain = gain_of(problem);
  problem.batches = {2};
  EXPECT_GT(gain, gain_of(problem));
  EXPECT_GT(gain, 1.1);
}

TEST(GraphpipeTest, ASequentialTransformerIsAChain) {
  std::vector<double> layers(24, 1.0);
  layers.front() = 0.25;
  layers.back() = 3;
  PlanProblem problem = problem_of(test::plan_chain(layers, 1e6), 8, 64);
  problem.cluster = uniform_cluster(8, 1e8, 1e-6);
  EXPECT_EQ(gain_of(problem), 1);
}

TEST(GraphpipeTest, OnChainsNeverWorseThanLinear) {
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    Random random(seed);
    PlanProblem problem = random_problem(random, seed % 2 == 0);
    problem.graph = test::in_a_row(problem.graph);
    const double least = brute_force(problem);
    if (std::isinf(least)) continue;
    EXPECT_LE(least_time(graphpipe_plans(problem, test::no_limit())), least * (1 + 1e-6)) << "seed " << seed;
  }
}

// --- what stages may be ---

TEST(GraphpipeTest, NodesThatNormaliseTakeOneSize) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    Random random(seed);
    PlanProblem problem = problem_of(test::random_series_parallel(random, {.nodes = 8, .batches = true}), 4, 16);
    for (const int node : {1, 3, 6}) problem.graph.nodes[at(node)].equal_batches = true;
    std::set<int> sizes;
    for (const PlanStage& stage : make_plan("graphpipe", problem, {.seconds = 600}).stages)
      if (std::any_of(stage.nodes.begin(), stage.nodes.end(), [&](int n) { return problem.graph.nodes[at(n)].equal_batches; }))
        sizes.insert(stage.samples);
    EXPECT_EQ(sizes.size(), 1u) << "seed " << seed;
  }
}

TEST(GraphpipeTest, WeakDevicesAreLeftOut) {
  PlanProblem problem = problem_of(test::plan_chain({1, 1, 1, 1}), 3, 32);
  problem.cluster.devices[1].speed = 0.01;
  const Plan plan = make_plan("graphpipe", problem, {.seconds = 600});
  for (const PlanStage& stage : plan.stages) EXPECT_EQ(std::count(stage.devices.begin(), stage.devices.end(), 1), 0);
  EXPECT_LT(plan.predicted_time, 32 * 12);
}

// Forty branches: they are searched as bundles.
TEST(GraphpipeTest, ManyBranches) {
  std::vector<std::pair<int, int>> edges;
  for (int i = 1; i <= 40; ++i) edges.insert(edges.end(), {{0, i}, {i, 41}});
  PlanProblem problem = problem_of(test::plan_graph(std::vector<double>(42, 1.0), edges), 8, 16);
  problem.replicas = false;
  EXPECT_LE(make_plan("graphpipe", problem, {.seconds = 600}).predicted_time, 1.3 * 16 * 3 * 42 / 8);
}

TEST(GraphpipeTest, StatesGrowWithTheSquareOfTheNodesAtMost) {
  const auto states = [](int each, bool row) {
    std::vector<std::pair<int, int>> edges;
    for (int i = 0; i < 4 * each; ++i) edges.emplace_back(i, i % each == each - 1 ? 4 * each : i + 1);
    Random random(each);
    std::vector<double> forward;
    for (int i = 0; i <= 4 * each; ++i) forward.push_back(test::draw(random, 1, 32));
    PlanProblem problem = problem_of(test::plan_graph(forward, edges), 16, 64);
    if (row) problem.graph = test::in_a_row(problem.graph);
    return static_cast<double>(graphpipe_plans(problem, test::no_limit()).states);
  };
  for (const bool row : {false, true}) EXPECT_LT(states(240, row), 1.1 * 64 * states(30, row)) << row;
}

TEST(GraphpipeTest, Mistakes) {
  PlanProblem problem = problem_of(test::plan_chain({1, 1}), 2, 8, 1);
  for (PlanNode& node : problem.graph.nodes) node.costs[0].resident_bytes = 9;
  EXPECT_EQ(test::message_of([&] { make_plan("graphpipe", problem, {.seconds = 600}); }),
            "no plan of test fits into devices of 1 B\n"
            "  the smallest memory of each device that would do is 10 B (10 bytes)\n"
            "  hint: take devices with more memory, or more of them");
  problem.graph.nodes[1].costs[0].degree = 2;
  EXPECT_EQ(test::message_of([&] { make_plan("graphpipe", problem, {.seconds = 600}); }),
            "node \"n1\" has no costs on one device\n  hint: graphpipe has no tensor parallelism");
}

}  // namespace
}  // namespace penstock
