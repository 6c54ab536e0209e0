// SPDX-License-Identifier: Apache-2.0
#include "plan/step_nodes.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/text.h"
#include "lower/lower.h"
#include "plan/merged_nodes.h"
#include "stage/loop.h"
#include "support/errors.h"
#include "support/text_graphs.h"

namespace penstock {
namespace {

using test::step_with;
using Strings = std::vector<std::string>;

TEST(StepNodes, RunsOfOneOrigin) {
  const Graph step = step_with(
      "%0: f32[2,3] = mul(%x, %w) {origin=\"a\"} %1: f32[2,3] = exp(%0) {origin=\"a\"} %2: f32[2,3] = neg(%1)"
      "%3: f32[2,3] = mul(%2, %w) {origin=\"a\"} %4: f32[] = sum(%3) {dim=[0, 1], keepdim=false} return %4\n");
  EXPECT_EQ(node_names(step), (Strings{"a", "a", "model", "a#2", "model#2"}));
  EXPECT_EQ(nodes_of(step), (Strings{"a", "model", "a#2", "model#2"}));
}

TEST(StepNodes, AnOpThatWaitsForMoreThanItsRunBeginsAnother) {
  const Graph step = step_with(
      "%0: f32[2,3] = exp(%x) {origin=\"left\"} %1: f32[2,3] = neg(%x) {origin=\"right\"} %2: f32[2,3] = exp(%1) {origin=\"right\"}"
      "%3: f32[2,3] = add(%2, %0) {origin=\"right\"} %4: f32[] = sum(%3) {dim=[0, 1], keepdim=false, origin=\"right\"} return %4\n");
  EXPECT_EQ(node_names(step), (Strings{"left", "right", "right", "right#2", "right#2"}));
}

TEST(StepNodes, WhatReadsNoDataIsOfItsFirstReader) {
  const Graph step = step_with(
      "%0: f32[3] = neg(%w) %1: f32[2,3] = exp(%x) {origin=\"a\"} %2: f32[2,3] = mul(%1, %0) {origin=\"b\"}"
      "%3: f32[2,3] = mul(%2, %0) {origin=\"c\"} %4: f32[] = sum(%3) {dim=[0, 1], keepdim=false, origin=\"c\"} return %4\n");
  EXPECT_EQ(node_names(step), (Strings{"b", "a", "b", "c", "c"}));
}

TEST(StepNodes, WhatReadsNoDataIsOfTheEarliestNodeThatNeedsIt) {
  // %2 stands between its operand and "a", which needs %0 too, but is of the later "b".
  const Graph step = step_with(
      "%0: f32[3] = neg(%w) %1: f32[3] = exp(%0) %2: f32[2,3] = mul(%x, %0) {origin=\"a\"} %3: f32[2,3] = mul(%2, %1) {origin=\"b\"}"
      "%4: f32[] = sum(%3) {dim=[0, 1], keepdim=false, origin=\"b\"} return %4\n");
  EXPECT_EQ(node_names(step), (Strings{"a", "b", "a", "b", "b"}));
}

// The body of a loop whose ops read data, parameters or both, of modules that take turns.
std::string random_body(std::mt19937_64& random) {
  std::vector<std::string> data = {"%x"}, rest = {"%w"};
  const auto one_of = [&](const std::vector<std::string>& values) { return values[random() % values.size()]; };
  std::string body;
  for (int i = 0; i < 24; ++i) {
    const bool varies = random() % 2 == 0;
    const std::string value = concat("%", i), first = one_of(varies ? data : rest), second = one_of(varies && random() % 2 ? data : rest);
    body += concat(value, varies ? ": f32[2,3]" : ": f32[3]", " = ", random() % 2 ? "mul" : "add", "(", first, ", ", second, ") {origin=\"",
                   std::string(1, "abc"[random() % 3]), "\", sequence=", i, "} ");
    (varies ? data : rest).push_back(value);
  }
  std::string sums;
  for (const std::string& value : data) sums += concat(sums.empty() ? "" : ", ", value);
  return concat(body, "%24: f32[2,3] = add_n(", sums,
                ") {sequence=24} %25: f32[] = sum(%24) {dim=[0, 1], keepdim=false, sequence=25} return %25\n");
}

// Nodes, and nodes merged to any number, feed each other without a circle, whether or not what reads no data leaves the loop.
TEST(StepNodes, DrawnStepsHaveNoCircles) {
  constexpr int kSteps = 150;
  for (std::uint64_t seed = 0; seed < kSteps; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Graph step = step_with(random_body(random));
    MergedNodes own;
    for (const std::string& node : nodes_of(step)) own[node] = node;
    EXPECT_NO_THROW(prepare_stages(mark_stages(step, own), /*hoist=*/false));
    for (const int most : {8, 4, 1}) EXPECT_NO_THROW(prepare_stages(mark_stages(step, merge_nodes(step, most)), most != 4)) << most;
  }
}

TEST(StepNodes, MarksReplaceStagesAndBoundaries) {
  const Graph step = step_with(
      "%0: f32[2,3] = mul(%x, %w) {origin=\"a\", stage=\"old\", sequence=1} %1: f32[2,3] = stage_boundary(%0) {sequence=2}"
      "%2: f32[2,3] = exp(%1) {origin=\"b\", sequence=3}"
      "%3: f32[2,3] = mul(%2, %x) {phase=\"backward\", stage=\"old\", sequence=1}"
      "%4: f32[] = sum(%2) {dim=[0, 1], keepdim=false, origin=\"b\"} return %4\n");
  const Graph marked = mark_stages(step, MergedNodes{{"a", "first"}, {"b", "second"}});
  Strings found;
  for (const Op& op : marked.ops[0].body->ops) found.push_back(op.name + ":" + op.stage);
  EXPECT_EQ(found, (Strings{"mul:first", "exp:second", "mul:", "sum:second"}));
}

PlanGraph shape_of(const std::vector<double>& seconds, const std::vector<PlanEdge>& edges) {
  PlanGraph graph;
  for (std::size_t i = 0; i < seconds.size(); ++i) graph.nodes.push_back({concat("n", i), {{.forward = seconds[i]}}});
  graph.edges = edges;
  return graph;
}

// b's own backward reads what b makes, ahead of c's.
TEST(StepNodes, SwappedIsWhatTheirBackwardsAreTheFirstToRead) {
  const Graph step = step_with(
      "%0: f32[2,3] = mul(%x, %w) {origin=\"a\", sequence=0} %1: f32[2,3] = exp(%0) {origin=\"b\", sequence=1}"
      "%2: f32[2,3] = mul(%1, %1) {origin=\"c\", sequence=2} %3: f32[3,2] = transpose(%1) {dim0=0, dim1=1, origin=\"c\", sequence=3}"
      "%4: f32[2,3] = mul(%1, %2) {phase=\"backward\", sequence=2} %5: f32[3,2] = mul(%3, %3) {phase=\"backward\", sequence=3}"
      "%6: f32[2,3] = mul(%4, %1) {phase=\"backward\", sequence=1} %7: f32[2,3] = mul(%6, %0) {phase=\"backward\", sequence=0}"
      "%8: f32[] = sum(%7) {dim=[0, 1], keepdim=false, phase=\"backward\", sequence=0} return %8\n");
  const auto marked = [&](const std::set<std::string>& swapped) {
    const Graph out = mark_stages(step, {}, {}, swapped);
    std::string names;
    for (const Op& op : out.ops[loop_of(out)].body->ops)
      if (op.attributes.contains("offload")) names += concat(op.origin, ".", op.name, " ");
    return names;
  };
  EXPECT_EQ(marked({}), "");
  EXPECT_EQ(marked({"a"}), "a.mul ");
  EXPECT_EQ(marked({"b"}), "b.exp ");
  EXPECT_EQ(marked({"c"}), "c.mul c.transpose ");
  EXPECT_EQ(marked({"a", "b", "c"}), "a.mul b.exp c.mul c.transpose ");
}

TEST(StepNodes, TheCheapestNeighboursMerge) {
  const PlanGraph graph = shape_of({5, 1, 1, 4, 9}, {{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  EXPECT_EQ(merged_nodes(graph, 5).at("n1"), "n1");
  auto merged = merged_nodes(graph, 4);
  EXPECT_EQ(merged.at("n1"), "n1..n2");
  EXPECT_EQ(merged.at("n2"), "n1..n2");
  merged = merged_nodes(graph, 3);
  EXPECT_EQ(merged.at("n3"), "n1..n3");
  EXPECT_EQ(merged.at("n4"), "n4");
}

TEST(StepNodes, MergingAddsNoOrder) {
  // 0 feeds two branches, 1 -> 2 and 3, that 4 joins; 0 also feeds 4.
  const PlanGraph graph = shape_of({1, 1, 1, 1, 1}, {{0, 1}, {1, 2}, {0, 3}, {2, 4}, {3, 4}, {0, 4}});
  const auto merged = merged_nodes(graph, 1);
  EXPECT_EQ(merged.at("n1"), "n1..n2");
  for (const char* alone : {"n0", "n3", "n4"}) EXPECT_EQ(merged.at(alone), alone);
  // A residual connection does not stand in the way.
  const auto residual = merged_nodes(shape_of({1, 1, 1}, {{0, 1}, {1, 2}, {0, 2}}), 1);
  EXPECT_EQ(residual.at("n2"), "n0..n2");
}

TEST(StepNodes, CostsOfAStep) {
  const Graph step = step_with(
      "%0: f32[2,3] = mul(%x, %w) {origin=\"a\", sequence=1} %1: f32[2,3] = exp(%0) {origin=\"b\", sequence=2}"
      "%2: f32[] = sum(%1) {dim=[0, 1], keepdim=false, origin=\"b\", sequence=3} return %2\n");
  const Graph marked = mark_stages(step, MergedNodes{{"a", "a"}, {"b", "b"}});
  const PlanGraph graph = plan_graph_of(prepare_stages(marked), [](const StageTask& task) { return 1.0 + task.stage.value; });
  ASSERT_EQ(graph.nodes.size(), 2u);
  EXPECT_EQ(graph.nodes[0].costs[0].samples, 2);
  EXPECT_EQ(graph.nodes[0].costs[0].forward, 1);
  EXPECT_EQ(graph.nodes[1].costs[0].forward, 2);
  EXPECT_EQ(graph.nodes[1].costs[0].backward, 0);
  EXPECT_EQ(graph.nodes[0].output_bytes, 24);
  ASSERT_EQ(graph.edges.size(), 1u);
  EXPECT_EQ(graph.edges[0].bytes, 12);  // nothing goes back
}

}  // namespace
}  // namespace penstock
