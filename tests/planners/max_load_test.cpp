// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "cost/cost_model.h"
#include "planners/planner_list.h"
#include "planners/profiles.h"
#include "planners/random_plan.h"
#include "support/errors.h"
#include "support/rounds.h"

namespace penstock {
namespace {

using test::Mask;
using test::message_of;
using test::profile;

TEST(MaxLoadPlanner, AsTheOriginal) {
  if (!test::has_profiles()) GTEST_SKIP();
  struct Row {
    int devices;
    double milliseconds;  // of the original, on devices only
  };
  for (const Row& row : {Row{2, 109.91790625}, Row{4, 58.5458125}, Row{6, 41.7458125}, Row{8, 33.3788125}}) {
    PlanProblem problem;
    problem.graph = profile("dnn-partitioning-bert24_training.json");
    problem.cluster = uniform_cluster(row.devices, 1e9, 0, problem.graph.memory);
    EXPECT_NEAR(plan_by_max_load(problem, {}).bottleneck, 1e-3 * row.milliseconds, 1e-13 * row.milliseconds) << row.devices;
  }
}

TEST(MaxLoadPlanner, OneAccelerator) {
  if (!test::has_profiles()) GTEST_SKIP();
  PlanProblem problem;
  problem.graph = profile("dnn-partitioning-bert24_training.json");
  problem.cluster = uniform_cluster(1, 1e9, 0, problem.graph.memory);
  EXPECT_NEAR(plan_by_max_load(problem, {}).bottleneck, 0.217813, 1e-12);
}

double load_of(const PlanGraph& graph, Mask stage) {
  double load = test::sum_over(graph, stage, [&](const PlanNode& node) { return node.costs[0].forward + node.costs[0].backward; });
  for (std::size_t n = 0; n < graph.nodes.size(); ++n)
    for (const PlanOutput& output : graph.nodes[n].outputs) {
      Mask together = Mask{1} << n;
      for (const int reader : output.readers) together |= Mask{1} << reader;
      if ((together & stage) != 0 && (together & ~stage) != 0) load += output.seconds;
    }
  return load;
}

double bytes_of(const PlanGraph& graph, Mask stage) {
  return test::sum_over(graph, stage, [](const PlanNode& node) { return node.costs[0].resident_bytes + node.costs[0].live_bytes; });
}

// The least of all plans on so many devices; 1e300: none fits.
double least_load(const PlanGraph& graph, int devices, double memory) {
  double best = 1e300;
  test::each_chain(graph, [&](const std::vector<Mask>& chain) {
    if (static_cast<int>(chain.size()) > devices + 1) return;
    double value = 0;
    for (std::size_t s = 1; s < chain.size(); ++s) {
      const Mask stage = chain[s] & ~chain[s - 1];
      value = std::max(value, bytes_of(graph, stage) > memory ? 1e300 : load_of(graph, stage));
    }
    best = std::min(best, value);
  });
  return best;
}

TEST(MaxLoadPlanner, AsEveryPlanOfASmallModel) {
  PlanProblem problem;
  problem.graph = test::stand_in("colours.json");
  for (const int devices : {1, 2, 3, 4}) {
    problem.cluster = uniform_cluster(devices, 1e9, 0, problem.graph.memory);
    const double best = least_load(problem.graph, devices, problem.graph.memory);
    if (best == 1e300) {
      EXPECT_NE(message_of([&] { plan_by_max_load(problem, {}); }), "no error");
    } else {
      EXPECT_NEAR(plan_by_max_load(problem, {}).bottleneck, best, 1e-12) << devices;
    }
  }
}

TEST(MaxLoadPlanner, AsEveryPlanOfSmallGraphs) {
  for (std::uint64_t seed = 0; seed < test::rounds(80u); ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    PlanProblem problem;
    problem.graph = test::random_plan_graph(random, 1 + static_cast<int>(seed % 6));
    for (PlanNode& node : problem.graph.nodes) node.outputs = {{.seconds = test::pick(random, 4)}};
    for (const PlanEdge& edge : problem.graph.edges)
      problem.graph.nodes[static_cast<std::size_t>(edge.from)].outputs[0].readers.push_back(edge.to);
    const int devices = 1 + static_cast<int>(random() % 4);
    const double memory = seed % 2 == 0 ? std::numeric_limits<double>::infinity() : 5 + test::pick(random, 30);
    problem.cluster = uniform_cluster(devices, 1e9, 0, memory);
    const double best = least_load(problem.graph, devices, memory);
    if (best == 1e300) {
      EXPECT_NE(message_of([&] { plan_by_max_load(problem, {}); }), "no error");
    } else {
      EXPECT_NEAR(plan_by_max_load(problem, {}).bottleneck, best, 1e-9 * (1 + best));
    }
  }
}

// A file of operators of which several share a colour, forward and backward, and the plan's value by the objective's words: an
// accelerator's operators and, once, each operator whose output crosses its border.
struct Operators {
  struct One {
    int colour;
    bool backward;
    double seconds, transfer;
  };
  std::vector<One> all;
  std::vector<std::pair<int, int>> edges;

  std::string text() const {
    std::string out = R"({"maxSizePerFPGA": 1e9, "maxFPGAs": 3, "nodes": [)";
    for (std::size_t i = 0; i < all.size(); ++i)
      out += concat(i > 0 ? ", " : "", "{\"id\": ", i, ", \"name\": \"c", all[i].colour,
                    "\", \"supportedOnFpga\": true, \"cpuLatency\": 1, ", "\"fpgaLatency\": ", all[i].seconds,
                    ", \"isBackwardNode\": ", all[i].backward ? "true" : "false", ", \"colorClass\": ", all[i].colour, ", \"size\": 1}");
    out += "], \"edges\": [";
    for (std::size_t e = 0; e < edges.size(); ++e)
      out += concat(e > 0 ? ", " : "", "{\"sourceId\": ", edges[e].first, ", \"destId\": ", edges[e].second,
                    ", \"cost\": ", all[static_cast<std::size_t>(edges[e].first)].transfer, ", \"size\": 1}");
    return out + "]}";
  }

  // The load of the fullest of the stages that the colours are on.
  double largest_load(const std::vector<int>& stage_of_colour) const {
    const auto stage = [&](int i) { return stage_of_colour[static_cast<std::size_t>(all[static_cast<std::size_t>(i)].colour)]; };
    double largest = 0;
    for (const int here : stage_of_colour) {
      double load = 0;
      std::vector<bool> crosses(all.size(), false);
      for (const auto& [from, to] : edges)
        if (stage(from) != stage(to) && (stage(from) == here || stage(to) == here)) crosses[static_cast<std::size_t>(from)] = true;
      for (std::size_t i = 0; i < all.size(); ++i)
        load += (stage(static_cast<int>(i)) == here ? all[i].seconds : 0) + (crosses[i] ? all[i].transfer : 0);
      largest = std::max(largest, load);
    }
    return largest;
  }
};

// Forward operators with ascending colours, so that these are in order; gradients of most of them, sent back or, as in one published file,
// forward.
Operators random_operators(std::mt19937_64& random) {
  Operators out;
  const int colours = 2 + static_cast<int>(random() % 4);
  const bool mirrored = random() % 2 == 0;
  const auto add = [&](int colour, bool backward) { out.all.push_back({colour, backward, test::pick(random, 9), test::pick(random, 5)}); };
  for (int c = 0; c < colours; ++c)
    for (int i = 1 + static_cast<int>(random() % 3); i > 0; --i) add(c, false);
  const int forward = static_cast<int>(out.all.size());
  for (int i = 0; i < forward; ++i) {
    if (random() % 4 > 0) add(out.all[static_cast<std::size_t>(mirrored ? forward - 1 - i : i)].colour, true);
  }
  const int all = static_cast<int>(out.all.size());
  for (int to = 1; to < all; ++to)
    for (int from = to < forward ? 0 : random() % 2 == 0 ? 0 : forward; from < to; ++from)
      if (random() % 4 == 0) out.edges.emplace_back(from, to);
  return out;
}

TEST(MaxLoadPlanner, CountsEachOutputOfNodesThatShareAColour) {
  int orders = 0;
  for (std::uint64_t seed = 0; seed < test::rounds(150u); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const Operators operators = random_operators(random);
    PlanProblem problem;
    problem.graph = parse_plan_graph(operators.text(), "g.json");
    problem.cluster = uniform_cluster(3, 1e9);
    std::map<std::string, std::size_t> node_of;
    for (std::size_t n = 0; n < problem.graph.nodes.size(); ++n) node_of[problem.graph.nodes[n].name] = n;
    std::vector<int> stage(node_of.size());
    const auto value_of = [&](const std::function<int(std::size_t)>& stage_of) {
      for (const auto& [name, node] : node_of) stage[static_cast<std::size_t>(std::stoi(name.substr(1)))] = stage_of(node);
      return 1e-3 * operators.largest_load(stage);
    };
    double best = 1e300;
    test::each_chain(problem.graph, [&](const std::vector<Mask>& chain) {
      ++orders;
      const auto stage_of = [&](std::size_t node) {
        int at = 0;
        while (!(chain[static_cast<std::size_t>(at)] >> node & 1)) ++at;
        return at;
      };
      if (chain.size() <= 4) best = std::min(best, value_of(stage_of));
    });
    const Plan plan = plan_by_max_load(problem, {});
    EXPECT_TRUE(plan.optimal);
    EXPECT_NEAR(plan.bottleneck, best, 1e-12) << operators.text();
    const NodePlaces places = places_of(problem.graph, plan.stages);
    EXPECT_NEAR(value_of([&](std::size_t node) { return places.stage[node]; }), plan.bottleneck, 1e-12);
  }
  EXPECT_GT(orders, test::rounds(1000));
}

TEST(MaxLoadPlanner, NodesNeedCosts) {
  PlanProblem problem;
  problem.graph.name = "one";
  problem.graph.nodes.resize(1);
  problem.graph.nodes[0].name = "decode";
  problem.cluster = uniform_cluster(2, 1e9);
  for (const PlannerInfo& planner : planners())
    EXPECT_EQ(message_of([&] { make_plan(planner.name, problem); }), "node \"decode\" of one has no costs") << planner.name;
}

TEST(MaxLoadPlanner, SaysWhichMemoryWouldDo) {
  PlanProblem problem;
  problem.graph.name = "one";
  problem.graph.nodes.resize(1);
  problem.graph.nodes[0].costs.resize(1);
  problem.graph.nodes[0].costs[0].resident_bytes = 64;
  problem.cluster = uniform_cluster(2, 1e9, 0, 10);
  const std::string message = message_of([&] { plan_by_max_load(problem, {}); });
  EXPECT_EQ(message.substr(0, message.find('(')),
            "no plan of one fits into devices of 10 B\n  the smallest memory of each device that would do is 64 B ");
}

}  // namespace
}  // namespace penstock
