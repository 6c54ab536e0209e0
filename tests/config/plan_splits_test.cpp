// SPDX-License-Identifier: Apache-2.0
// A device's part of a split model, by the engine's own layouts, is held against the formulas of the literature.
#include "config/plan_splits.h"

#include <gtest/gtest.h>

#include <optional>
#include <set>
#include <tuple>

#include "base/text.h"
#include "config/equal_layers.h"
#include "config/plan_model.h"
#include "models/registry.h"
#include "support/errors.h"

namespace penstock {
namespace {

constexpr int kWidth = 128, kHeads = 4, kLength = 256, kSize = 2, kLayers = 3;

Config gpt(const std::vector<std::string>& more = {}) {
  std::vector<Override> overrides;
  for (const std::string& setting : {concat("layers=", kLayers), concat("width=", kWidth), concat("heads=", kHeads),
                                     concat("context=", kLength), std::string("batch=8"), std::string("microbatches=4")})
    overrides.push_back(parse_override(setting));
  for (const std::string& setting : more) overrides.push_back(parse_override(setting));
  return load_config("", overrides, builtin_models());
}

struct Graphs {
  PlanGraph whole;
  PlanSplit part;
};

Graphs graphs_of(const Config& config, const Split& split) {
  const ModelRegistry models = builtin_models();
  const MergedNodes merged = planning_nodes(config, models, kMostNodes);
  const DeviceModel& device = published_devices().device("a100-80");
  Graphs out{model_graph(config, models, merged, {kSize}, device), {}};
  out.part = model_split(config, models, merged, {kSize}, device, out.whole, split);
  return out;
}

// The sum over the nodes of the middle layer.
template <class Value>
double of_layer(const PlanGraph& graph, Value&& value) {
  double sum = 0;
  for (const PlanNode& node : graph.nodes)
    if (node.name.starts_with("h.1.") || node.name == "h.1" || node.name.starts_with("h.1#")) sum += value(node.costs[0]);
  return sum;
}

// Collectives of a kind and their bytes.
struct Spoken {
  int count = 0;
  double bytes = 0;
};
Spoken spoken(const PlanGraph& graph, Kind kind) {
  Spoken out;
  of_layer(graph, [&](const NodeCost& cost) {
    for (const NodeStep& step : cost.steps)
      if (step.kind == kind && step.opcode != Opcode::run) ++out.count, out.bytes += step.bytes;
    return 0.0;
  });
  return out;
}

// Kept of 512 tokens: 16h + a + 4 numbers each; split by tensor 4h + 12h/t + a/t + 4, by sequence too (16h + a + 4)/t (2205.05198).
TEST(PlanSplits, KeptActivations) {
  const auto live = [](const PlanGraph& graph) { return of_layer(graph, [](const NodeCost& cost) { return cost.live_bytes; }); };
  const Graphs tensor = graphs_of(gpt(), {.tensor = 2}), sequence = graphs_of(gpt(), {.tensor = 2, .sequence = true});
  const double tokens = kSize * kLength * 4;
  EXPECT_EQ(live(tensor.whole), tokens * (16 * kWidth + kHeads + 4));
  EXPECT_EQ(live(tensor.part.graph), tokens * (4 * kWidth + 6 * kWidth + kHeads / 2 + 4));
  EXPECT_EQ(live(sequence.part.graph), tokens * (16 * kWidth + kHeads + 4) / 2);
}

// Two all_reduces of a layer's activations in each direction, of which a split backward's are in I.
TEST(PlanSplits, WhatTensorParallelismSpeaks) {
  const Graphs graphs = graphs_of(gpt(), {.tensor = 2});
  const double activation = kSize * kLength * kWidth * 4;
  for (const Kind kind : {Kind::F, Kind::B, Kind::I}) {
    EXPECT_EQ(spoken(graphs.part.graph, kind).count, 2);
    EXPECT_EQ(spoken(graphs.part.graph, kind).bytes, 2 * activation);
  }
  EXPECT_EQ(spoken(graphs.part.graph, Kind::W).count, 0);
  EXPECT_EQ(spoken(graphs.whole, Kind::F).count, 0);
}

// Each pair of directions is half of the work of the product that it surrounds: forward nothing is left to do behind an all_reduce,
// backward the weight gradients are.
TEST(PlanSplits, WeightGradientsStandBehindTheirSum) {
  const Graphs graphs = graphs_of(gpt(), {.tensor = 2});
  for (const PlanNode& node : graphs.part.graph.nodes) {
    if (node.name != "h.1.mlp.c_fc") continue;
    std::vector<Kind> kinds;
    double behind = 0;
    bool summed = false;
    for (const NodeStep& step : node.costs[0].steps) {
      if (step.kind != Kind::B) continue;
      summed = summed || step.opcode == Opcode::all_reduce;
      if (summed && step.opcode == Opcode::run && step.after < 0) behind += step.seconds;
    }
    EXPECT_TRUE(summed);
    EXPECT_GT(behind, 0);
  }
}

// Times and parameters add up: what is split has its share, norms are whole.
TEST(PlanSplits, SharesOfTheWhole) {
  const Graphs graphs = graphs_of(gpt(), {.tensor = 2});
  const auto parameters = [](const PlanGraph& graph) { return of_layer(graph, [](const NodeCost& cost) { return cost.parameter_bytes; }); };
  const double h = kWidth, whole = 4 * (12 * h * h + 13 * h), kept = 4 * (4 * h + 2 * h);  // norms, and two biases behind sums
  EXPECT_EQ(parameters(graphs.whole), whole);
  EXPECT_EQ(parameters(graphs.part.graph), (whole - kept) / 2 + kept);
  for (std::size_t n = 0; n < graphs.whole.nodes.size(); ++n) {
    EXPECT_EQ(graphs.whole.nodes[n].name, graphs.part.graph.nodes[n].name);
    EXPECT_LE(graphs.part.graph.nodes[n].costs[0].parameter_bytes, graphs.whole.nodes[n].costs[0].parameter_bytes);
  }
}

TEST(PlanSplits, Possible) {
  const ModelRegistry models = builtin_models();
  const auto names = [&](int devices, int most, const DegreesLimits& only = {}) {
    return join(possible_splits(gpt(), models, devices, most, only), " ",
                [](const Split& s) { return concat(s.tensor, "x", s.context, s.sequence ? "s" : ""); });
  };
  EXPECT_EQ(names(8, 4), "1x2 1x4 2x1 2x1s 2x2 4x1 4x1s");
  EXPECT_EQ(names(6, 3), "1x2 1x3 2x1 2x1s 3x1 3x1s") << "four heads for three members";
  EXPECT_EQ(names(8, 8, parse_degrees_limits("context=1,sequence=0")), "2x1 4x1") << "no eight of four heads";
  EXPECT_NE(test::message_of([&] { names(8, 8, parse_degrees_limits("tensor=8")); }).find("\"heads\" has 4 in"), std::string::npos);
}

void expect_same(const PlanGraph& a, const PlanGraph& b) {
  ASSERT_EQ(a.nodes.size(), b.nodes.size());
  for (std::size_t n = 0; n < a.nodes.size(); ++n) {
    SCOPED_TRACE(a.nodes[n].name);
    EXPECT_EQ(a.nodes[n].name, b.nodes[n].name);
    EXPECT_EQ(a.nodes[n].output_bytes, b.nodes[n].output_bytes);
    ASSERT_EQ(a.nodes[n].costs.size(), b.nodes[n].costs.size());
    for (std::size_t c = 0; c < a.nodes[n].costs.size(); ++c) {
      const NodeCost &x = a.nodes[n].costs[c], &y = b.nodes[n].costs[c];
      const auto figures = [](const NodeCost& of) {
        return std::vector{of.forward, of.backward, of.weight, of.live_bytes, of.resident_bytes, of.parameter_bytes};
      };
      EXPECT_EQ(figures(x), figures(y));
      EXPECT_NEAR(x.update, y.update, 0.1 * x.update) << "what all parameters take once is shared by them";
      ASSERT_EQ(x.steps.size(), y.steps.size());
      for (std::size_t s = 0; s < x.steps.size(); ++s)
        EXPECT_EQ(std::tuple(x.steps[s].kind, x.steps[s].seconds, x.steps[s].bytes, x.steps[s].after),
                  std::tuple(y.steps[s].kind, y.steps[s].seconds, y.steps[s].bytes, y.steps[s].after));
    }
  }
  const auto edges = [](const PlanGraph& graph) {
    std::set<std::tuple<int, int, double>> out;
    for (const PlanEdge& edge : graph.edges) out.emplace(edge.from, edge.to, edge.bytes);
    return out;
  };
  EXPECT_EQ(edges(a), edges(b));
}

// The graph of seven layers, from three, is that which all seven have; split, too.
TEST(EqualLayers, AreCostedOnce) {
  const ModelRegistry models = builtin_models();
  for (const char* tied : {"tied=1", "tied=0"}) {
    const Config seven = gpt({"layers=7", tied, "dropout=0.1"});
    const std::optional<EqualLayers> layers = equal_layers(seven, models);
    ASSERT_TRUE(layers);
    for (const Split& split : {Split{.tensor = 2}, Split{.tensor = 2, .sequence = true}, Split{.context = 2}}) {
      const Graphs all = graphs_of(seven, split), few = graphs_of(layers->few, split);
      expect_same(all.whole, expanded(*layers, few.whole));
      expect_same(all.part.graph, expanded(*layers, few.part.graph));
    }
  }
}

TEST(EqualLayers, OnlyWhereNodesRepeat) {
  const ModelRegistry models = builtin_models();
  EXPECT_FALSE(equal_layers(gpt({"layers=3"}), models));
  const auto of = [&](const char* model) {
    return equal_layers(load_config("", {{"model.name", model, "--set"}, parse_override("layers=6"), parse_override("batch=8")}, models),
                        models);
  };
  EXPECT_FALSE(of("t5")) << "two rows of layers";
}

}  // namespace
}  // namespace penstock
