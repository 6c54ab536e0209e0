// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "planners/cheapest_ways.h"
#include "planners/downsets.h"
#include "planners/planner_list.h"
#include "planners/profiles.h"
#include "planners/random_plan.h"
#include "support/errors.h"
#include "support/random_plan.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Mask;
using test::message_of;
using test::profile;

constexpr double kGiB = 1024.0 * 1024 * 1024;

struct Row {
  double memory, bandwidth;
  int batches, devices;
  double value;
};

constexpr Row kRows[] = {
    {8e10, 2.5e10, 1920, 2, 0.4866769784},
    {8e10, 2.5e10, 1920, 4, 0.2435834676},
    {8e10, 2.5e10, 1920, 8, 0.1220367122},
    {8e10, 2.5e10, 1920, 16, 0.0612633345},
    {8e10, 2.5e10, 1920, 64, 0.015683301225},
    {8e10, 2.5e10, 1920, 512, 0.00229306045867},
    {8e10, 2.5e10, 1920, 2048, 0.000675948358},
    {8 * kGiB, 25 * kGiB, 1920, 8, 0.16585575},
    {8 * kGiB, 25 * kGiB, 1920, 16, 0.0829622169611},
    {8 * kGiB, 25 * kGiB, 1920, 32, 0.0415154504417},
    {8 * kGiB, 25 * kGiB, 1920, 512, 0.00256112784601},
    {16 * kGiB, 1e9, 1920, 4, 0.303946396},
    {16 * kGiB, 1e9, 1920, 8, 0.155047594},
    {16 * kGiB, 1e9, 1920, 16, 0.080598193},
    {16 * kGiB, 1e9, 1920, 32, 0.0433734925},
    {16 * kGiB, 1e10, 1920, 4, 0.3011794396},
    {16 * kGiB, 1e10, 1920, 8, 0.1508971594},
    {16 * kGiB, 1e10, 1920, 16, 0.0757560193},
    {16 * kGiB, 1e10, 1920, 32, 0.03818544925},
    {16 * kGiB, 1e10, 64, 8, 0.164270782},
    {16 * kGiB, 1e10, 64, 16, 0.091358579},
    {16 * kGiB, 1e10, 64, 32, 0.0508074388},
};

PlanProblem problem_of(const Row& row) {
  PlanProblem problem;
  problem.graph = profile("piper-bert32a100.json");
  problem.samples = row.batches;
  problem.cluster = uniform_cluster(row.devices, row.bandwidth, 0, row.memory);
  return problem;
}

// By its definition, from the plan alone; infinite where it does not fit.
double value_of(const PlanProblem& problem, const std::vector<PlanStage>& stages, int batches) {
  const PlanGraph& graph = problem.graph;
  const double bandwidth = problem.cluster.levels[0].link.bandwidth;
  double value = 0;
  int degrees = 0;
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    const int d = stage->replicas();
    degrees += d;
    const int kept = (degrees + d - 1) / d;
    std::map<int, const NodeCost*> costs;
    for (std::size_t i = 0; i < stage->nodes.size(); ++i)
      costs[stage->nodes[i]] = &graph.nodes[static_cast<std::size_t>(stage->nodes[i])].costs[static_cast<std::size_t>(stage->choices[i])];
    double seconds = 0, cut = 0, parameters = 0, memory = 0;
    for (const auto& [node, cost] : costs) {
      EXPECT_EQ(cost->degree, stage->degree);
      seconds += cost->forward + cost->backward;
      parameters += cost->parameter_bytes;
      memory += cost->live_bytes * kept + cost->resident_bytes;
    }
    for (const PlanEdge& edge : graph.edges) {
      if (costs.contains(edge.to) && !costs.contains(edge.from)) {
        const auto sync = costs[edge.to]->forward_sync.find(edge.from);
        cut += edge.bytes + (sync == costs[edge.to]->forward_sync.end() ? 0 : sync->second);
      }
      if (costs.contains(edge.from) && !costs.contains(edge.to)) {
        const auto sync = costs[edge.from]->backward_sync.find(edge.to);
        cut += edge.bytes + (sync == costs[edge.from]->backward_sync.end() ? 0 : sync->second);
      }
    }
    if (memory > problem.cluster.devices[0].memory || batches % d != 0) return 1e300;
    value = std::max(value, seconds / d + (2 * cut / d + 4.0 * (d - 1) * parameters / (d * static_cast<double>(batches))) / bandwidth);
  }
  return degrees <= batches ? value : 1e300;
}

TEST(PiperPlanner, AsTheOriginal) {
  if (!test::has_profiles()) GTEST_SKIP();
  for (const Row& row : kRows) {
    const PlanProblem problem = problem_of(row);
    const Plan plan = plan_by_piper(problem, {});
    EXPECT_NEAR(plan.bottleneck, row.value, 1e-9 * row.value) << row.memory << " " << row.bandwidth << " " << row.devices;
    EXPECT_NEAR(value_of(problem, plan.stages, row.batches), plan.bottleneck, 1e-9 * row.value);
    EXPECT_TRUE(plan.optimal);
    std::size_t devices = 0;
    for (const PlanStage& stage : plan.stages) devices += stage.devices.size();
    EXPECT_LE(devices, static_cast<std::size_t>(row.devices));
  }
}

TEST(PiperPlanner, SaysWhichMemoryWouldDo) {
  if (!test::has_profiles()) GTEST_SKIP();
  PlanProblem problem = problem_of({8 * kGiB, 25 * kGiB, 1920, 4, 0});
  const std::string message = message_of([&] { plan_by_piper(problem, {}); });
  ASSERT_NE(message.find("the smallest memory of each device that would do is 8.1 GiB ("), std::string::npos) << message;
  const double needed = std::stod(message.substr(message.find('(') + 1));
  problem.cluster = uniform_cluster(4, 25 * kGiB, 0, needed);
  EXPECT_GT(plan_by_piper(problem, {}).bottleneck, 0);
  problem.cluster = uniform_cluster(4, 25 * kGiB, 0, needed * (1 - 1e-5));
  EXPECT_NE(message_of([&] { plan_by_piper(problem, {}); }), "no error");
}

// Two degrees with two ways each, which may differ in everything.
PlanGraph random_graph(std::mt19937_64& random, int nodes) {
  PlanGraph graph = test::random_plan_graph(random, nodes);
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const NodeCost vanilla = graph.nodes[i].costs[0];
    graph.nodes[i].costs.clear();
    for (const int degree : {1, 2})
      for (const char* name : {"vanilla", "again"}) {
        NodeCost cost = vanilla;
        cost.name = name;
        cost.degree = degree;
        cost.forward = vanilla.forward / degree + test::pick(random, 1);
        cost.backward = vanilla.backward / degree + (cost.name == "again" ? vanilla.forward : 0);
        cost.live_bytes = cost.name == "again" ? test::pick(random, 1) : vanilla.live_bytes;
        cost.resident_bytes = vanilla.resident_bytes + test::pick(random, 1);
        cost.parameter_bytes += test::pick(random, 1);
        for (const PlanEdge& edge : graph.edges) {
          if (edge.to == static_cast<int>(i)) cost.forward_sync[edge.from] = test::pick(random, 2);
          if (edge.from == static_cast<int>(i)) cost.backward_sync[edge.to] = test::pick(random, 2);
        }
        graph.nodes[i].costs.push_back(cost);
      }
  }
  return graph;
}

// Every way for each node of each stage of one split.
double best_of_split(const PlanProblem& problem, std::vector<PlanStage>& stages, int batches) {
  double best = 1e300;
  const int nodes = static_cast<int>(problem.graph.nodes.size());
  test::each_choice(nodes, 2, [&](const std::vector<int>& ways) {
    for (PlanStage& stage : stages) {
      stage.choices.clear();
      for (const int node : stage.nodes) stage.choices.push_back(2 * (stage.degree - 1) + ways[static_cast<std::size_t>(node)]);
    }
    best = std::min(best, value_of(problem, stages, batches));
  });
  return best;
}

double best_of_all(const PlanProblem& problem, int batches) {
  double best = 1e300;
  const int devices = static_cast<int>(problem.cluster.devices.size());
  test::each_chain(problem.graph, [&](const std::vector<Mask>& chain) {
    test::each_choice(static_cast<int>(chain.size()) - 1, 2 * devices, [&](const std::vector<int>& choice) {
      std::vector<PlanStage> stages(chain.size() - 1);
      int used = 0;
      for (std::size_t s = 0; s < stages.size(); ++s) {
        stages[s].degree = 1 + choice[s] % 2;
        stages[s].devices.resize(static_cast<std::size_t>(stages[s].degree * (1 + choice[s] / 2)));
        used += static_cast<int>(stages[s].devices.size());
        for (std::size_t node = 0; node < problem.graph.nodes.size(); ++node)
          if ((chain[s + 1] & ~chain[s]) >> node & 1) stages[s].nodes.push_back(static_cast<int>(node));
      }
      if (used <= devices) best = std::min(best, best_of_split(problem, stages, batches));
    });
  });
  return best;
}

TEST(PiperPlanner, AsEveryPlanOfSmallGraphs) {
  for (std::uint64_t seed = 0; seed < test::rounds(60u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    PlanProblem problem;
    problem.graph = random_graph(random, 1 + static_cast<int>(seed % 4));
    problem.samples = seed % 2 == 0 ? 4 : 6;
    const int devices = 1 + static_cast<int>(random() % 4);
    problem.cluster = uniform_cluster(devices, 1 + test::pick(random, 4), 0,
                                      seed % 3 == 0 ? std::numeric_limits<double>::infinity() : 5 + test::pick(random, 30));
    const double best = best_of_all(problem, problem.samples);
    if (best == 1e300) {
      EXPECT_NE(message_of([&] { plan_by_piper(problem, {}); }), "no error");
      continue;
    }
    const Plan plan = plan_by_piper(problem, {});
    EXPECT_NEAR(plan.bottleneck, best, 1e-9 * (1 + best));
    EXPECT_NEAR(value_of(problem, plan.stages, problem.samples), plan.bottleneck, 1e-9 * (1 + best));
  }
}

// Six branches of four nodes: 15,625 downsets, whose pairs are too many to look at. Between two devices each of them is a plan.
TEST(PiperPlanner, AsEveryCutOfAWideGraph) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    PlanProblem problem;
    for (int n = 0; n < 24; ++n) {
      problem.graph.nodes.push_back(test::plan_node("n", 1 + test::pick(random, 1000) / 7));
      if (n >= 6) problem.graph.edges.push_back({n - 6, n, test::pick(random, 20)});
    }
    problem.samples = 2;
    problem.cluster = uniform_cluster(2, 3);
    problem.replicas = false;
    double best = 1e300;
    const Downsets all(problem.graph);
    for (const int set : all.all()) {
      const std::vector<int> first = all.difference(0, set), second = all.difference(set, all.count() - 1);
      if (first.empty() || second.empty()) continue;
      std::vector<PlanStage> stages = test::stages_on_own_devices({first, second});
      for (PlanStage& stage : stages) stage.choices.assign(stage.nodes.size(), 0);
      best = std::min(best, value_of(problem, stages, 2));
    }
    const Plan plan = plan_by_piper(problem, {.seconds = 600});
    EXPECT_NEAR(plan.bottleneck, best, 1e-9 * best);
    EXPECT_TRUE(plan.optimal);
  }
}

TEST(PiperPlanner, AsEveryPlanOfASmallModel) {
  PlanProblem problem;
  problem.graph = test::stand_in("layers.json");
  problem.samples = problem.graph.samples;
  for (const int devices : {1, 2, 3})
    for (const double memory : {problem.graph.memory, 6e8, 4e8}) {
      problem.cluster = uniform_cluster(devices, problem.graph.bandwidth, 0, memory);
      SCOPED_TRACE(testing::Message() << devices << " devices of " << memory);
      const double best = best_of_all(problem, problem.samples);
      if (best < 1e300) {
        const Plan plan = plan_by_piper(problem, {});
        EXPECT_NEAR(plan.bottleneck, best, 1e-9 * best);
        EXPECT_TRUE(plan.optimal);
        continue;
      }
      const std::string message = message_of([&] { plan_by_piper(problem, {}); });
      ASSERT_NE(message.find("the smallest memory of each device that would do is "), std::string::npos) << message;
      const double needed = std::stod(message.substr(message.find('(') + 1));
      problem.cluster = uniform_cluster(devices, problem.graph.bandwidth, 0, needed);
      EXPECT_LT(best_of_all(problem, problem.samples), 1e300);
      problem.cluster = uniform_cluster(devices, problem.graph.bandwidth, 0, needed * (1 - 1e-5));
      EXPECT_EQ(best_of_all(problem, problem.samples), 1e300);
    }
}

TEST(PiperPlanner, NodesNeedADegreeThatTheDevicesHave) {
  PlanProblem problem;
  problem.graph.name = "wide";
  problem.graph.nodes.resize(1);
  problem.graph.nodes[0].name = "head";
  problem.graph.nodes[0].costs.resize(1);
  problem.graph.nodes[0].costs[0].degree = 4;
  problem.cluster = uniform_cluster(2, 1e9);
  EXPECT_EQ(message_of([&] { plan_by_piper(problem, {}); }),
            "node \"head\" of wide fits nowhere\n  its costs are for more than the 2 devices that there are");
}

TEST(CheapestWays, AsEveryChoice) {
  for (std::uint64_t seed = 0; seed < test::rounds(200u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    std::vector<std::vector<Way>> nodes(1 + random() % 7);
    for (auto& ways : nodes)
      for (std::uint64_t way = 0; way < 3; ++way) ways.push_back({test::pick(random, 20), test::pick(random, 20)});
    const double memory = test::pick(random, 60);
    double best = 1e300;
    test::each_choice(static_cast<int>(nodes.size()), 3, [&](const std::vector<int>& choices) {
      double cost = 0, bytes = 0;
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        cost += nodes[i][static_cast<std::size_t>(choices[i])].cost;
        bytes += nodes[i][static_cast<std::size_t>(choices[i])].memory;
      }
      if (bytes <= memory) best = std::min(best, cost);
    });
    const CheapestWays ways = cheapest_ways(nodes, memory);
    EXPECT_EQ(ways.fits, best < 1e300);
    EXPECT_EQ(ways.cost, ways.fits ? best : 0);
    EXPECT_TRUE(ways.exact);
  }
}

// More sums than are kept: no worse than the greatest savings first, and it says so.
TEST(CheapestWays, OfManyDifferentNodes) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> real(1, 2);
  std::vector<std::vector<Way>> nodes(60);
  double memory = 0, fastest = 0, slowest = 0;
  for (auto& ways : nodes) {
    const double small = real(random);
    ways = {{1, 4 * small + real(random)}, {1 + real(random), small}};
    memory += (ways[0].memory + ways[1].memory) / 2;
    fastest += ways[0].cost;
    slowest += ways[1].cost;
  }
  const CheapestWays found = cheapest_ways(nodes, memory);
  EXPECT_TRUE(found.fits);
  EXPECT_FALSE(found.exact);
  EXPECT_GT(found.cost, fastest);
  EXPECT_LT(found.cost, slowest);
}

}  // namespace
}  // namespace penstock
