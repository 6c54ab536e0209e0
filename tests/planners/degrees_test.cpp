// SPDX-License-Identifier: Apache-2.0
#include "planners/degrees_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/plan_file.h"
#include "planners/degrees_atoms.h"
#include "support/errors.h"
#include "support/rounds.h"

namespace penstock::test {
namespace {

// A chain of equal layers on hosts of 4 devices: forward 1 s, backward 2 s, of which half are weight gradients.
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

// The devices of a group stand `pipe` apart.
constexpr AxisOrder kDataOutside = {DegreeAxis::data, DegreeAxis::pipe, DegreeAxis::context, DegreeAxis::tensor};

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
  // Among 8 hosts of 8, what parameters and gradients have of it: 4/8 and 12/64 of 7.5.
  EXPECT_DOUBLE_EQ(resident_bytes(mixed, 7.5e9, {.data = 64, .zero = 3, .local = 8}), 7.5e9 * (4.0 / 8 + 12.0 / 64));
}

// The memory is what is resident, one micro-batch's activations for each stage to the end, and what is there in full.
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
    EXPECT_EQ(std::pair(found.degrees.data, found.degrees.zero), std::pair(8, 3)) << text(found.degrees);
    EXPECT_NE(text(found.degrees).find(", ZeRO-3 among hosts of 4"), std::string::npos);
  }
  std::set<std::string> orders;  // two devices of each of four hosts, where the pipeline has two devices of each node
  for (const DegreesResult& found : planned("local=2", 16).results)
    orders.insert(concat(found.degrees.pipe, " ", order_text(found.degrees)));
  EXPECT_EQ(orders, (std::set<std::string>{"2 data/pipe"}));
  EXPECT_TRUE(test::message_of([&] { planned("local=3", 8); }).starts_with("no degrees for layers"));
}

// Neighbours have the links of a node; devices that stand apart those between nodes.
TEST(Degrees, GroupsAndTheirLinks) {
  const Degrees inside{.pipe = 2, .data = 4}, across{.pipe = 2, .data = 4, .order = kDataOutside};
  EXPECT_EQ(group_of(inside, 1), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(group_of(across, 1), (std::vector<int>{1, 3, 5, 7}));
  const PlanProblem problem = layers(8, 8, 1000, 100);
  Degrees degrees{.pipe = 2, .data = 4, .schedule = "1f1b", .microbatches = 2};
  const double fast = simulated(problem, degrees).exposed;
  degrees.order = kDataOutside;
  const double slow = simulated(problem, degrees).exposed;
  EXPECT_GT(slow, fast);
  // The first actor's sum of 1600 bytes ends last: it is not hidden at all.
  EXPECT_NEAR(slow, 2 * 3.0 / 4 * 1600 / 100, 1);
  EXPECT_NEAR(fast, 2 * 3.0 / 4 * 1600 / 1000, 1);
}

// The layers with each device of `split` having its part of everything, and one all_reduce of `bytes` in each direction: forward behind all
// work, backward in front of the weight gradients' second.
PlanSplit part_of(const PlanGraph& whole, const Split& split, double bytes) {
  PlanSplit out{split, whole};
  const double share = split.devices();
  for (PlanNode& node : out.graph.nodes) {
    NodeCost& cost = node.costs[0];
    for (double* part : {&cost.forward, &cost.backward, &cost.weight, &cost.live_bytes, &cost.parameter_bytes, &cost.update})
      *part /= share;
    const NodeStep sum{.opcode = Opcode::all_reduce, .axis = split.context > 1 ? "context" : "tensor", .bytes = bytes};
    const auto add = [&](NodeStep step, Kind kind, double seconds, int after = -1) {
      step.kind = kind;
      step.seconds = seconds;
      step.after = after;
      cost.steps.push_back(step);
    };
    add({}, Kind::F, cost.forward);
    add(sum, Kind::F, 0);
    add({}, Kind::B, cost.backward - cost.weight);
    add(sum, Kind::B, 0);
    add({}, Kind::B, cost.weight);
    add({}, Kind::I, cost.backward - cost.weight);
    add(sum, Kind::I, 0);
    add({}, Kind::W, cost.weight);
  }
  return out;
}

// Forward waits for all of an all_reduce, backward for what lasts longer than the weight gradients; a split backward hides nothing.
TEST(Degrees, WhatASplitWaitsFor) {
  PlanProblem problem = layers(8, 8, 1000, 100);
  const Split split{.tensor = 2};
  problem.splits = {part_of(problem.graph, split, 800)};  // 800 bytes at 1000 a second, once there and once back: 0.8 s
  const Degrees degrees{.pipe = 1, .data = 4, .split = split, .schedule = "1f1b", .microbatches = 4};
  problem.cluster.levels = {{2, {0, 1000}}, {4, {0, kInfinity}}};  // replicas' gradients cost nothing
  const DegreesResult result = simulated(problem, degrees);
  EXPECT_NEAR(result.compute, 4 * 8 * 1.5 + 8 * 0.25, 1e-9);
  EXPECT_NEAR(result.exposed, 4 * 8 * (0.8 + 0.3), 1e-9);
  EXPECT_NEAR(result.split_seconds, result.exposed, 1e-9);
  EXPECT_NEAR(result.peak_bytes[0], 16 * 400 + 40, 1e-9) << "half of 800 elements, and of 80 bytes";
  Degrees again = degrees;
  again.recompute = true;
  EXPECT_NEAR(simulated(problem, again).exposed, 4 * 8 * (0.8 + 0.8 + 0.3), 1e-9);
  Degrees apart = degrees;
  apart.schedule = "zb-h1";
  EXPECT_NEAR(simulated(problem, apart).exposed, 4 * 8 * (0.8 + 0.8), 1e-9);
  // Sums behind the loop.
  problem.splits[0].graph.nodes[3].costs[0].steps.push_back(
      {.kind = Kind::U, .opcode = Opcode::all_reduce, .axis = "tensor", .bytes = 1000});
  EXPECT_NEAR(simulated(problem, degrees).exposed, 4 * 8 * (0.8 + 0.3) + 1, 1e-9);
}

// Members of tensor are neighbours; the other axes stand in any order.
TEST(Degrees, OrdersOfTheAxes) {
  const Degrees usual{.pipe = 2, .data = 2, .split = {.tensor = 2, .context = 2}};
  EXPECT_EQ(order_text(usual), "pipe/data/context/tensor");
  EXPECT_EQ(group_of(usual, 1), (std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15}));
  Degrees other = usual;
  other.order = {DegreeAxis::context, DegreeAxis::data, DegreeAxis::pipe, DegreeAxis::tensor};
  EXPECT_EQ(group_of(other, 1), (std::vector<int>{2, 3, 10, 11, 6, 7, 14, 15}));
  EXPECT_EQ(group_along(other, DegreeAxis::context, 7), (std::vector<int>{7, 15}));
  EXPECT_EQ(group_along(other, DegreeAxis::tensor, 7), (std::vector<int>{6, 7}));
  EXPECT_EQ(group_along(other, DegreeAxis::pipe, 7), (std::vector<int>{5, 7}));

  PlanProblem problem = layers(8, 16, 1000, 100);
  problem.splits = {part_of(problem.graph, {.tensor = 2, .context = 2}, 1)};
  const auto orders = [&](const std::string& only) {
    std::set<std::string> found;
    DegreesOptions options{.only = parse_degrees_limits("tensor=2,context=2,schedule=1f1b,zero=0,recompute=0" + only), .every = true};
    for (const DegreesResult& result : plan_degrees(problem, options).results) found.insert(order_text(result.degrees));
    return found;
  };
  EXPECT_EQ(orders(",pipe=2").size(), 6u);
  EXPECT_EQ(orders(",pipe=4"), (std::set<std::string>{"pipe/context/tensor", "context/pipe/tensor"}));
  EXPECT_EQ(orders(",pipe=2,order=data/context/pipe"), (std::set<std::string>{"data/context/pipe/tensor"}));
  problem.cluster = uniform_cluster(16, 1000);
  EXPECT_EQ(orders(",pipe=2"), (std::set<std::string>{"pipe/data/context/tensor"})) << "all links are alike";
}

// 64 devices have 28 triples of pipe, data and tensor, and 7 pairs of pipe and data.
TEST(Degrees, Candidates) {
  PlanProblem problem = layers(64, 64, 1000, 100);
  problem.samples = 64;
  for (int tensor = 2; tensor <= 64; tensor *= 2) problem.splits.push_back(part_of(problem.graph, {.tensor = tensor}, 1));
  const auto triples = [&](const std::string& only) {
    std::set<std::tuple<int, int, int>> found;
    DegreesOptions options{.only = parse_degrees_limits("schedule=1f1b,zero=0,recompute=0" + only), .every = true};
    for (const DegreesResult& result : plan_degrees(problem, options).results)
      found.emplace(result.degrees.pipe, result.degrees.data, result.degrees.split.tensor);
    return found.size();
  };
  EXPECT_EQ(triples(""), 28u);
  EXPECT_EQ(triples(",tensor=1"), 7u);
}

// Memory that no pipeline of replicas has is found by splitting, and no slower split is taken without need.
TEST(Degrees, SplitsWhereMemoryBinds) {
  PlanProblem problem = layers(2, 8, 1e6, 100);
  problem.splits = {part_of(problem.graph, {.tensor = 2}, 1000), part_of(problem.graph, {.tensor = 4}, 1000)};
  const auto best = [&](double memory) {
    for (ClusterDevice& device : problem.cluster.devices) device.memory = memory;
    return plan_degrees(problem, {.only = parse_degrees_limits("zero=0,recompute=0")}).results[0];
  };
  const DegreesResult roomy = best(1e9), tight = best(16 * 50 + 30);
  EXPECT_EQ(tight.degrees.split.tensor, 4);
  EXPECT_LE(roomy.seconds, tight.seconds);
  EXPECT_LE(tight.memory, 16 * 50 + 30);
  // Every split is looked at.
  std::set<int> seen;
  for (const DegreesResult& result : plan_degrees(problem, {}).results) seen.insert(result.degrees.split.tensor);
  EXPECT_EQ(seen, (std::set<int>{1, 2, 4}));
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
      EXPECT_LE(steps.least_memory(result.degrees), result.memory * (1 + 1e-9)) << text(result.degrees);
    }
  }
}

// Larger units gather less and hold more: the memory bounds them from above, slow links from below.
TEST(Degrees, TheUnitFollowsMemoryAndLinks) {
  PlanProblem problem = layers(8, 8, 2000, kInfinity);
  problem.samples = 64;
  for (PlanNode& node : problem.graph.nodes) node.costs[0].live_bytes = 1000;
  DegreesOptions options;
  options.only = parse_degrees_limits("schedule=zeropp,pipe=2,data=4,zero=3,recompute=0,by-block=0,chunks=2,order=pipe/data");
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

TEST(Degrees, Atoms) {
  // Two nodes beside each other: no cut between them, nor before the one that joins them; and what adds no bytes is no branch.
  PlanProblem problem = layers(4, 4, 1, 1);
  problem.graph.edges = {{0, 1, 1}, {0, 2, 1}, {1, 3, 2}, {2, 3, 3}, {0, 3, 0}};
  const std::vector<Atom> atoms = atoms_of(problem.graph, 2, 4);
  ASSERT_EQ(atoms.size(), 2u);
  EXPECT_EQ(atoms[1].nodes.size(), 3u);
  EXPECT_EQ(atoms[0].bytes, 2);
  EXPECT_EQ(atoms[0].forward, 2);
  EXPECT_EQ(atoms[0].weight, 2);
  EXPECT_EQ(atoms[1].parameters, 300);
  problem.graph.nodes[0].costs[0].weight = -1;
  EXPECT_EQ(atoms_of(problem.graph, 1, 4)[0].weight, 1) << "half of the backward";
}

TEST(Degrees, EvenCuts) {
  const auto atoms = [](const std::vector<double>& seconds) {
    std::vector<Atom> out(seconds.size());
    for (std::size_t i = 0; i < out.size(); ++i) out[i].forward = seconds[i];
    return out;
  };
  using Cuts = std::vector<int>;
  EXPECT_EQ(even_cuts(atoms({1, 1, 1, 1}), 2, 1), (Cuts{0, 2, 4}));
  EXPECT_EQ(even_cuts(atoms({4, 1, 1, 1, 1}), 2, 1), (Cuts{0, 1, 5}));
  EXPECT_EQ(even_cuts(atoms({1, 1, 1, 1, 1}), 5, 1), (Cuts{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(even_cuts(atoms({0, 0, 0}), 2, 1).size(), 3u);
  std::mt19937_64 random(3);
  for (int round = 0; round < test::rounds(50); ++round) {
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
    const Cuts cuts = even_cuts(atoms(seconds), pieces, 1);
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
  EXPECT_EQ(parse_degrees_limits("tensor=4,order=data/pipe").order, (std::vector{DegreeAxis::data, DegreeAxis::pipe}));
  const auto message = [](const std::string& text) { return message_of([&] { parse_degrees_limits(text); }); };
  EXPECT_NE(message("pip=8").find("did you mean \"pipe\"?"), std::string::npos);
  EXPECT_NE(message("pipe=x").find("pipe is \"x\""), std::string::npos);
  EXPECT_EQ(message("order=pipe/dat"),
            "--only order=pipe/dat: order has \"dat\"\n  axes: pipe, data, context, tensor\n  hint: order=data/pipe");
  EXPECT_NE(message("sequence=2").find("a whole number from 0 to 1"), std::string::npos);
  EXPECT_NE(message("zero=4").find("a whole number from 0 to 3"), std::string::npos);
  EXPECT_NE(message("schedule=zerop").find("did you mean \"zeropp\"?"), std::string::npos);
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
  EXPECT_NE(message(odd, "tensor=2").find("a replica is split over 1 device; the degrees multiply"), std::string::npos);
  odd.graph.nodes[2].outputs = {{.seconds = 1, .readers = {3}}};
  EXPECT_NE(message(odd).find("was measured as a time"), std::string::npos);
  odd.graph.nodes[2].costs[0].degree = 2;
  EXPECT_NE(message(odd).find("has no costs on one device"), std::string::npos);
  odd.graph.nodes[2].costs.clear();
  EXPECT_NE(message(odd).find("has no costs"), std::string::npos);
}

}  // namespace
}  // namespace penstock::test
