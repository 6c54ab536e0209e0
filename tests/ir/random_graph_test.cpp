// SPDX-License-Identifier: Apache-2.0
// Random graphs: the text form and the structural hash.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "support/random_graph.h"
#include "support/rounds.h"

namespace penstock {
namespace {

const std::uint64_t kSeeds = test::rounds(300u);

// The same graph with values numbered otherwise, and other names and marks.
Graph renamed(Graph graph, std::mt19937_64& random) {
  std::vector<std::size_t> to(graph.values.size());
  std::iota(to.begin(), to.end(), 0u);
  std::shuffle(to.begin(), to.end(), random);
  std::vector<Value> values(to.size());
  for (std::size_t i = 0; i < to.size(); ++i) values[to[i]] = {graph.values[i].type, "v" + std::to_string(to[i])};
  graph.values = std::move(values);
  const auto renumber = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = ValueId(static_cast<std::int64_t>(to[id.index()]));
  };
  renumber(graph.inputs);
  renumber(graph.outputs);
  for (Op& op : graph.ops) {
    renumber(op.operands);
    renumber(op.results);
    op.stage = "other";
    op.origin = "other";
    op.phase = Phase::backward;
    op.sequence = 1;
  }
  graph.name = "other";
  return graph;
}

TEST(RandomGraphs, PrintParsePrintIsAFixpoint) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Graph graph = test::random_graph(random, true);
    verify_structure(graph);
    const Graph back = parse_graph(print(graph));
    EXPECT_EQ(print(back), print(graph));
    EXPECT_TRUE(structurally_equal(back, graph));
    EXPECT_EQ(structural_hash(back), structural_hash(graph));
  }
}

TEST(RandomGraphs, HashIgnoresNamesNumbersAndMarks) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Graph graph = test::random_graph(random, true);
    const Graph other = renamed(graph, random);
    EXPECT_EQ(structural_hash(other), structural_hash(graph));
    EXPECT_TRUE(structurally_equal(other, graph));
  }
}

TEST(RandomGraphs, HashSeesEveryChange) {
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const Graph graph = test::random_graph(random, true);
    if (graph.ops.empty()) continue;
    const auto differs = [&](auto&& change) {
      Graph other = graph;
      change(other, other.ops[random() % other.ops.size()]);
      EXPECT_NE(structural_hash(other), structural_hash(graph));
      EXPECT_FALSE(structurally_equal(other, graph));
    };
    differs([](Graph&, Op& op) { op.attributes["extra"] = true; });
    differs([](Graph&, Op& op) { op.name += "_"; });
    differs([](Graph& g, Op& op) { op.operands.push_back(g.inputs[0]); });
    differs([](Graph& g, Op& op) { g.values[op.results[0].index()].type.shape.push_back(2); });
    differs([](Graph& g, Op&) { g.outputs.push_back(g.inputs[0]); });
    differs([](Graph& g, Op&) { g.ops.pop_back(); });
  }
}

}  // namespace
}  // namespace penstock
