#include "planners/degrees_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/plan_file.h"
#include "planners/degrees_blocks.h"
#include "support/errors.h"

namespace penstock::test {
namespace {

// A chain of equal layers on nodes of 4 devices: forward 1 s, backward 2 s, of which half are weight gradients.
PlanProblem layers(int count, int devices, double inside, double between, double memory = kInfinity) {
  PlanProblem problem;
  problem.graph.name = "layers";
  for (int i = 0; i < count; ++i) {
    PlanNode& node = problem.graph.nodes.emplace_back();
    node.name = concat("h.", i);
    node.costs = {{.forward = 1, .backward = 2, .weight = 1, .live_bytes = 10, .parameter_bytes = 400, .update = 0.5}};
    node.output_bytes = 1;
    if (i > 0) problem.graph.edges.push_back({i - 1, i, 1});
  }
  problem.cluster = uniform_cluster(devices, between, 0, memory);
  problem.cluster.levels = {{4, {0, inside}}, {devices / 4, {0, between}}};
  problem.samples = 16;
  return problem;
}

DegreesResult simulated(const PlanProblem& problem, Degrees degrees) {
  return simulate_degrees(problem, {}, degrees);
}

TEST(Degrees, StatesOfZeroLevels) {
  // Rajbhandari et al., figure 1: 7.5 billion parameters on 64 devices in mixed precision.
  const StateBytes mixed{2, 2, 12};
  const auto gigabytes = [&](int zero) { return resident_bytes(mixed, 7.5e9, {.data = 64, .zero = zero}) / 1e9; };
  EXPECT_NEAR(gigabytes(0), 120, 0.05);
  EXPECT_NEAR(gigabytes(1), 31.4, 0.05);
  EXPECT_NEAR(gigabytes(2), 16.6, 0.05);
  EXPECT_NEAR(gigabytes(3), 1.9, 0.05);
  // Among 8 nodes of 8, what parameters and gradients have of it: 4/8 and 12/64 of 7.5.
  EXPECT_DOUBLE_EQ(resident_bytes(mixed, 7.5e9, {.data = 64, .zero = 3, .local = 8}), 7.5e9 * (4.0 / 8 + 12.0 / 64));
}

// What is resident, one micro-batch's activations for each stage to the end, and what is there in full.
TEST(Degrees, MemoryOfAStep) {
  const PlanProblem problem = layers(8, 8, 1e9, 1e9);
  const auto memory = [&](Degrees degrees) {
    degrees.pipe = 2;
    degrees.data = 4;
    degrees.microbatches = 4;
    return simulated(problem, degrees).peak_bytes;
  };
  const double n = 400;  // elements of a stage of four layers
  using Bytes = std::vector<double>;
  const auto expect_near = [](const Bytes& found, const Bytes& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t a = 0; a < found.size(); ++a) EXPECT_NEAR(found[a], expected[a], 1e-6);
  };
  expect_near(memory({.schedule = "1f1b"}), {16 * n + 2 * 40, 16 * n + 40});
  expect_near(memory({.schedule = "1f1b", .zero = 1}), {(8 + 2) * n + 2 * 40, (8 + 2) * n + 40});
  expect_near(memory({.schedule = "1f1b", .zero = 2}), {(4 + 3) * n + 4 * n + 2 * 40, (4 + 3) * n + 4 * n + 40});
  expect_near(memory({.schedule = "1f1b", .zero = 3}), {4 * n + 8 * n + 2 * 40, 4 * n + 8 * n + 40});
  // Two layers' parameters and gradients instead of the stage's.
  expect_near(memory({.schedule = "1f1b", .zero = 3, .by_block = true}), {4 * n + 2 * 8 * 100 + 2 * 40, 4 * n + 2 * 8 * 100 + 40});
  // Between F and R only what enters the stage: nothing at the first.
  expect_near(memory({.schedule = "1f1b", .recompute = true}), {16 * n + 40, 16 * n + 40});
  // Chunks of two layers: of ZeroPP's two are there at a time, and one's gradients.
  const Bytes zeropp = memory({.schedule = "zeropp", .chunks = 2, .zero = 3, .unit = 4});
  EXPECT_LE(zeropp[0], 4 * n + 2 * (n / 2 * 4) + 2 * (n / 2 * 4) + 4 * 40);
}

// ZeroPP (2402.03791): 36 m h^2 / U elements for each transformer layer of width h, whose parameters are 12 h^2.
TEST(Degrees, Volume) {
  const int m = 12;
  const double h = 3, layer = 12 * h * h;
  PlanProblem problem = layers(8, 8, 1e9, 1e9);
  for (PlanNode& node : problem.graph.nodes) node.costs[0].parameter_bytes = 4 * layer;
  problem.samples = 4 * m;
  Degrees degrees{.pipe = 2, .data = 4, .schedule = "zeropp", .chunks = 4, .microbatches = m, .zero = 3};
  for (const int unit : {2, 3, 4, 6, 12}) {
    degrees.unit = unit;
    const DegreesResult result = simulated(problem, degrees);
    EXPECT_DOUBLE_EQ(result.gathered + result.reduced, 4 * 36 * m * h * h / unit) << "4 layers on an actor, U = " << unit;
  }
  // Each micro-batch gathers twice and reduces once.
  const DegreesResult by_block =
      simulated(problem, {.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = m, .zero = 3, .by_block = true});
  EXPECT_DOUBLE_EQ(by_block.gathered, 4 * 2 * m * layer);
  EXPECT_DOUBLE_EQ(by_block.reduced, 4 * m * layer);
  // After the loop: a sum of gradients; or its two halves, of which the second gathers parameters.
  const DegreesResult sum = simulated(problem, {.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = m});
  EXPECT_EQ(std::pair(sum.gathered, sum.reduced), std::pair(0.0, 4 * layer));
  const DegreesResult sharded = simulated(problem, {.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = m, .zero = 1});
  EXPECT_EQ(std::pair(sharded.gathered, sharded.reduced), std::pair(4 * layer, 4 * layer));
}

TEST(Degrees, TimeOfAStep) {
  // Collectives that cost nothing: 1F1B's (m + p - 1) (F + B), and the update of a stage, a share of it where it is sharded.
  const PlanProblem free = layers(8, 8, kInfinity, kInfinity);
  const DegreesResult plain = simulated(free, {.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = 4});
  EXPECT_DOUBLE_EQ(plain.seconds, (4 + 1) * 12 + 2);
  EXPECT_DOUBLE_EQ(plain.compute, 4 * 12 + 2);
  EXPECT_DOUBLE_EQ(plain.bubble, 12);
  EXPECT_DOUBLE_EQ(plain.exposed, 0);
  EXPECT_DOUBLE_EQ(simulated(free, {.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = 4, .zero = 1}).seconds, 60 + 0.5);
  EXPECT_DOUBLE_EQ(simulated(free, {.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = 4, .recompute = true}).seconds,
                   (4 + 1) * 16 + 2 - 4)
      << "the second actor's last R waits for nobody";
  // One replica of all layers: a sum of 8 x 400 bytes over the slowest link, 2 x 7/8 of them, behind the loop.
  const PlanProblem slow = layers(8, 8, 1000, 100);
  const DegreesResult data = simulated(slow, {.data = 8, .schedule = "1f1b", .microbatches = 2});
  EXPECT_DOUBLE_EQ(data.exposed, 2 * 7.0 / 8 * 3200 / 100);
}

// Two nodes whose four devices hold the same: at the end of the step a node's half of 3200 bytes of gradients is scattered over them, and
// its half of the parameters gathered, 3/4 of each over their links.
TEST(Degrees, AmongNodes) {
  const Degrees degrees{.data = 8, .schedule = "1f1b", .microbatches = 2, .zero = 3, .local = 4};
  const DegreesResult result = simulated(layers(8, 8, 1000, 100), degrees);
  EXPECT_NEAR(result.seconds - simulated(layers(8, 8, kInfinity, 100), degrees).seconds, 2 * 0.75 * 1600 / 1000, 1e-9);
  Degrees whole = degrees;
  whole.local = 1;
  EXPECT_DOUBLE_EQ(simulated(layers(8, 8, kInfinity, kInfinity), degrees).seconds,
                   simulated(layers(8, 8, kInfinity, kInfinity), whole).seconds);
  EXPECT_LT(result.seconds, simulated(layers(8, 8, 1000, 100), whole).seconds) << "rings of two over the slow link instead of eight";
  EXPECT_GT(result.memory, simulated(layers(8, 8, 1000, 100), whole).memory);

  const auto planned = [](const char* only, int devices) {
    return plan_degrees(layers(8, devices, 1000, 100), {.only = parse_degrees_limits(only), .every = true});
  };
  for (const DegreesResult& found : planned("local=4", 8).results) {
    EXPECT_EQ(std::tuple(found.degrees.data, found.degrees.zero, found.degrees.across), std::tuple(8, 3, false)) << text(found.degrees);
    EXPECT_NE(text(found.degrees).find(", ZeRO-3 among nodes of 4"), std::string::npos);
  }
  std::set<std::pair<int, bool>> pipes;  // two devices of each of four nodes, where the pipeline has two devices of each node
  for (const DegreesResult& found : planned("local=2", 16).results) pipes.emplace(found.degrees.pipe, found.degrees.across);
  EXPECT_EQ(pipes, (std::set<std::pair<int, bool>>{{2, true}}));
  EXPECT_TRUE(test::message_of([&] { planned("local=3", 8); }).starts_with("no degrees for layers"));
}

// Neighbours have the links of a node; devices that stand apart those between nodes.
TEST(Degrees, GroupsAndTheirLinks) {
  const Degrees inside{.pipe = 2, .data = 4}, across{.pipe = 2, .data = 4, .across = true};
  EXPECT_EQ(group_of(inside, 1), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(group_of(across, 1), (std::vector<int>{1, 3, 5, 7}));
  const PlanProblem problem = layers(8, 8, 1000, 100);
  Degrees degrees{.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = 2};
  const double fast = simulated(problem, degrees).exposed;
  degrees.across = true;
  const double slow = simulated(problem, degrees).exposed;
  EXPECT_GT(slow, fast);
  // The first actor's sum of 1600 bytes ends last: it is not hidden at all.
  EXPECT_NEAR(slow, 2 * 3.0 / 4 * 1600 / 100, 1);
  EXPECT_NEAR(fast, 2 * 3.0 / 4 * 1600 / 1000, 1);
}

// Every candidate within `only`, by hand, against the search.
TEST(Degrees, TheBestIsFound) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 6; ++round) {
    PlanProblem problem = layers(8, 8, std::pow(10.0, 1 + random() % 4), std::pow(10.0, 1 + random() % 3));
    for (PlanNode& node : problem.graph.nodes) {
      node.costs[0].forward = 1.0 + static_cast<double>(random() % 5);
      node.costs[0].backward = 2.0 + static_cast<double>(random() % 5);
      node.costs[0].live_bytes = static_cast<double>(random() % 1000);
    }
    for (ClusterDevice& device : problem.cluster.devices) device.memory = 8000 + static_cast<double>(random() % 8000);
    DegreesOptions options;
    options.every = true;
    const DegreesPlan all = plan_degrees(problem, options);
    options.every = false;
    const DegreesPlan found = plan_degrees(problem, options);
    EXPECT_EQ(all.considered, static_cast<int>(all.results.size()));
    EXPECT_EQ(all.considered, found.considered);
    EXPECT_LT(found.results.size(), all.results.size());
    EXPECT_DOUBLE_EQ(found.results[0].seconds, all.results[0].seconds) << "round " << round;
    for (const DegreesResult& result : all.results) {
      EXPECT_NEAR(result.seconds, result.compute + result.bubble + result.exposed, 1e-9 * result.seconds);
      EXPECT_GE(result.exposed, -1e-9 * result.seconds) << text(result.degrees);
      DegreesSteps steps(problem, options);
      const DegreesSteps::Bound bound = steps.bound(result.degrees);
      EXPECT_LE(bound.seconds, result.seconds * (1 + 1e-9)) << text(result.degrees);
      EXPECT_LE(bound.memory, result.memory * (1 + 1e-9)) << text(result.degrees);
    }
  }
}

// Larger units gather less and hold more: the memory bounds them from above, slow links from below.
TEST(Degrees, TheUnitFollowsMemoryAndLinks) {
  PlanProblem problem = layers(8, 8, 2000, kInfinity);
  problem.samples = 64;
  for (PlanNode& node : problem.graph.nodes) node.costs[0].live_bytes = 1000;
  DegreesOptions options;
  options.only = parse_degrees_limits("schedule=zeropp,pipe=2,data=4,zero=3,recompute=0,by-block=0,chunks=2,across=0");
  options.every = true;
  const auto best = [&] { return plan_degrees(problem, options).results[0]; };
  std::vector<DegreesResult> all = plan_degrees(problem, options).results;
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.degrees.unit < b.degrees.unit; });
  ASSERT_GE(all.size(), 4u);
  for (std::size_t i = 1; i < all.size(); ++i) {
    EXPECT_GT(all[i].memory, all[i - 1].memory);
    EXPECT_LE(all[i].gathered, all[i - 1].gathered);
  }
  EXPECT_EQ(best().degrees.unit, 16);
  for (const DegreesResult& result : all) {
    for (ClusterDevice& device : problem.cluster.devices) device.memory = result.memory;
    EXPECT_LE(best().degrees.unit, result.degrees.unit);
    EXPECT_LE(best().seconds, result.seconds);
  }
  // The faster the links, the less a small unit loses.
  const auto loss = [&](double bandwidth) {
    problem = layers(8, 8, bandwidth, kInfinity);
    const Degrees small{.pipe = 2, .data = 4, .schedule = "zeropp", .chunks = 2, .microbatches = 16, .zero = 3, .unit = 2};
    Degrees large = small;
    large.unit = 16;
    return simulated(problem, small).seconds / simulated(problem, large).seconds;
  };
  EXPECT_GT(loss(100), loss(1000));
  EXPECT_GT(loss(1000), loss(100'000));
}

TEST(Degrees, Blocks) {
  // Two nodes beside each other: no cut between them, nor before the one that joins them; and what adds no bytes is no branch.
  PlanProblem problem = layers(4, 4, 1, 1);
  problem.graph.edges = {{0, 1, 1}, {0, 2, 1}, {1, 3, 2}, {2, 3, 3}, {0, 3, 0}};
  const std::vector<Block> blocks = blocks_of(problem, 2, 4);
  ASSERT_EQ(blocks.size(), 2u);
  EXPECT_EQ(blocks[1].nodes.size(), 3u);
  EXPECT_EQ(blocks[0].bytes, 2);
  EXPECT_EQ(blocks[0].forward, 2);
  EXPECT_EQ(blocks[0].weight, 2);
  EXPECT_EQ(blocks[1].parameters, 300);
  problem.graph.nodes[0].costs[0].weight = -1;
  EXPECT_EQ(blocks_of(problem, 1, 4)[0].weight, 1) << "half of the backward";
}

TEST(Degrees, EvenCuts) {
  const auto blocks = [](const std::vector<double>& seconds) {
    std::vector<Block> out(seconds.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i].forward = seconds[i];
    return out;
  };
  using Cuts = std::vector<int>;
  EXPECT_EQ(even_cuts(blocks({1, 1, 1, 1}), 2, 1), (Cuts{0, 2, 4}));
  EXPECT_EQ(even_cuts(blocks({4, 1, 1, 1, 1}), 2, 1), (Cuts{0, 1, 5}));
  EXPECT_EQ(even_cuts(blocks({1, 1, 1, 1, 1}), 5, 1), (Cuts{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(even_cuts(blocks({0, 0, 0}), 2, 1).size(), 3u);
  std::mt19937_64 random(3);
  for (int round = 0; round < 50; ++round) {
    std::vector<double> seconds(4 + random() % 5);
    for (double& s : seconds) s = static_cast<double>(random() % 9);
    const int pieces = 1 + static_cast<int>(random() % 4), n = static_cast<int>(seconds.size());
    const auto sum = [&](int begin, int end) {
      double out = 0;
      for (int i = begin; i < end; ++i) out += seconds[at(i)];
      return out;
    };
    const std::function<double(int, int)> least = [&](int begin, int left) {
      if (left == 1) return sum(begin, n);
      double best = kInfinity;
      for (int end = begin + 1; end <= n - left + 1; ++end) best = std::min(best, std::max(sum(begin, end), least(end, left - 1)));
      return best;
    };
    const Cuts cuts = even_cuts(blocks(seconds), pieces, 1);
    double largest = 0;
    for (std::size_t i = 0; i + 1 < cuts.size(); ++i) largest = std::max(largest, sum(cuts[i], cuts[i + 1]));
    EXPECT_EQ(largest, least(0, pieces)) << "round " << round;
  }
}

// The best degrees as a plan like any other: stages on their groups' devices, the table, and a file that reads back.
TEST(Degrees, AsAPlanner) {
  const PlanProblem problem = layers(8, 8, 1000, 100);
  PlanOptions options;
  options.degrees.only = parse_degrees_limits("pipe=2,data=4,chunks=2,schedule=interleaved-1f1b,zero=1");
  const Plan plan = make_plan("degrees", problem, options);
  ASSERT_EQ(plan.stages.size(), 4u);
  EXPECT_EQ(plan.planner, "degrees");
  EXPECT_EQ(plan.stages[1].name, "h.2 .. h.3");
  EXPECT_EQ(plan.stages[0].devices, plan.stages[2].devices);
  EXPECT_EQ(plan.schedule.actors.size(), 2u);
  EXPECT_EQ(plan.predicted_time, plan.degrees->results[0].seconds);
  EXPECT_EQ(plan.peak_bytes[at(plan.stages[1].devices[2])], plan.degrees->results[0].peak_bytes[1]);
  const PlanFile file = parse_plan(print(plan_file_of(problem, plan)), "plan.json");
  EXPECT_EQ(file.zero, 1);
  EXPECT_EQ(file.links.size(), 3u);
  EXPECT_EQ(devices_of_actors(file), (std::vector<int>{4, 4}));

  PlanProblem alone = problem;
  alone.replicas = false;
  EXPECT_EQ(make_plan("degrees", alone).degrees->results[0].degrees.data, 1);
}

TEST(Degrees, Limits) {
  const DegreesLimits limits = parse_degrees_limits("pipe=8,zero=0,schedule=zeropp,by-block=1");
  EXPECT_EQ(limits.pipe, 8);
  EXPECT_EQ(limits.zero, 0);
  EXPECT_EQ(limits.schedule, "zeropp");
  EXPECT_EQ(limits.by_block, 1);
  EXPECT_EQ(limits.recompute, -1);
  const auto message = [](const std::string& text) { return message_of([&] { parse_degrees_limits(text); }); };
  EXPECT_NE(message("pip=8").find("did you mean pipe?"), std::string::npos);
  EXPECT_NE(message("pipe=x").find("pipe is \"x\""), std::string::npos);
  EXPECT_NE(message("zero=4").find("a whole number from 0 to 3"), std::string::npos);
  EXPECT_NE(message("schedule=zerop").find("did you mean zeropp?"), std::string::npos);
  EXPECT_NE(message("pipe").find("pipe is \"\""), std::string::npos);
}

TEST(Degrees, WhatHasNoPlan) {
  const auto message = [](const PlanProblem& problem, const std::string& only = "") {
    DegreesOptions options;
    if (!only.empty()) options.only = parse_degrees_limits(only);
    return message_of([&] { plan_degrees(problem, options); });
  };
  // Too little memory: the smallest that would do is named, and does.
  PlanProblem problem = layers(8, 8, 1e9, 1e9, 100);
  const std::string small = message(problem);
  EXPECT_NE(small.find("no plan of layers fits into devices of 100 B"), std::string::npos) << small;
  const std::size_t open = small.rfind('('), close = small.rfind(" bytes)");
  ASSERT_NE(close, std::string::npos) << small;
  const double needed = std::stod(small.substr(open + 1, close - open - 1));
  for (ClusterDevice& device : problem.cluster.devices) device.memory = needed;
  EXPECT_TRUE(plan_degrees(problem, {}).results[0].fits);
  for (ClusterDevice& device : problem.cluster.devices) device.memory = needed * 0.99;
  EXPECT_NE(message(problem).find("the smallest memory"), std::string::npos);

  PlanProblem odd = layers(8, 8, 1e9, 1e9);
  odd.samples = 3;
  EXPECT_NE(message(odd, "data=8").find("no degrees for layers on 8 devices"), std::string::npos);
  EXPECT_NE(message(odd, "pipe=3").find("a step has 3 samples"), std::string::npos);
  odd.graph.nodes[2].outputs = {{.seconds = 1, .readers = {3}}};
  EXPECT_NE(message(odd).find("was measured as a time"), std::string::npos);
  odd.graph.nodes[2].costs[0].degree = 2;
  EXPECT_NE(message(odd).find("has no costs on one device"), std::string::npos);
  odd.graph.nodes[2].costs.clear();
  odd.graph.nodes[2].cpu_seconds = 1;
  EXPECT_NE(message(odd).find("host processors only"), std::string::npos);
}

}  // namespace
}  // namespace penstock::test
