// SPDX-License-Identifier: Apache-2.0
// Measures how fast GraphPipe's planner searches, by nodes and devices; `states` is the number of states that it looks at.
//
//   cmake --preset release -DPENSTOCK_BENCH=ON && ninja -C build graphpipe_bench && build/bench/graphpipe_bench
#include <benchmark/benchmark.h>

#include <random>

#include "planners/graphpipe.h"

namespace penstock {
namespace {

PlanGraph graph_of(int nodes) {
  PlanGraph graph;
  graph.name = "bench";
  std::mt19937_64 random(nodes);
  for (int i = 0; i < nodes; ++i) {
    const double forward = 1e-3 * std::uniform_int_distribution(1, 32)(random);
    graph.nodes.push_back({.name = std::to_string(i), .costs = {}, .output_bytes = 1e6});
    for (const int samples : {1, 2, 4, 8})
      graph.nodes.back().costs.push_back({.samples = samples,
                                          .forward = forward * (1 + samples) / 2,
                                          .backward = forward * (1 + samples),
                                          .live_bytes = 1e6 * samples,
                                          .resident_bytes = 4e7,
                                          .parameter_bytes = 1e7});
  }
  return graph;
}

// A graph of blocks: a node, four branches of three nodes each, a node, and so on.
PlanGraph blocks(int nodes) {
  PlanGraph graph = graph_of(nodes);
  const auto edge = [&](int from, int to) {
    if (to < nodes) graph.edges.push_back({from, to, 1e6});
  };
  for (int block = 0; block < nodes; block += 13)
    for (int branch = 0; branch < 4; ++branch) {
      const int first = block + 1 + 3 * branch;
      edge(block, first);
      edge(first, first + 1);
      edge(first + 1, first + 2);
      edge(std::min(first + 2, nodes - 1), block + 13);
    }
  return graph;
}

PlanGraph row(int nodes) {
  PlanGraph graph = graph_of(nodes);
  for (int i = 1; i < nodes; ++i) graph.edges.push_back({i - 1, i, 1e6});
  return graph;
}

// A graph of four branches into one head.
PlanGraph branches(int nodes) {
  PlanGraph graph = graph_of(nodes);
  const int each = (nodes - 1) / 4;
  for (int i = 0; i + 1 < nodes; ++i) graph.edges.push_back({i, (i + 1) % each == 0 || i + 1 > 4 * each ? nodes - 1 : i + 1, 1e6});
  return graph;
}

void search(benchmark::State& state, PlanGraph (*make)(int), double memory) {
  PlanProblem problem;
  problem.graph = make(static_cast<int>(state.range(0)));
  problem.cluster = uniform_cluster(static_cast<int>(state.range(1)), 1e10, 1e-6, memory);
  problem.samples = 32 * static_cast<int>(state.range(1));
  std::int64_t states = 0;
  TimeLimit limit;
  for (auto _ : state) states = graphpipe_plans(problem, limit).states;
  state.counters["states"] = static_cast<double>(states);
}

constexpr double kAnyMemory = std::numeric_limits<double>::infinity();
void sizes(benchmark::internal::Benchmark* bench) {
  bench->Args({125, 8})->Args({250, 16})->Args({250, 64})->Args({500, 64})->Args({1000, 64})->Unit(benchmark::kMillisecond)->Iterations(1);
}
BENCHMARK_CAPTURE(search, row, row, kAnyMemory)->Apply(sizes);
BENCHMARK_CAPTURE(search, blocks, blocks, kAnyMemory)->Apply(sizes);
BENCHMARK_CAPTURE(search, branches, branches, kAnyMemory)->Apply(sizes);
BENCHMARK_CAPTURE(search, blocks_tight_memory, blocks, 1.2e9)->Apply(sizes);

}  // namespace
}  // namespace penstock
