// SPDX-License-Identifier: Apache-2.0
// Small costed graphs for planners.
#pragma once

#include <random>
#include <utility>
#include <vector>

#include "penstock/plan.h"

namespace penstock::test {

// Node i takes forward[i] seconds forward and twice that backward for one sample, keeps one byte for it, and moves `bytes`.
PlanGraph plan_graph(const std::vector<double>& forward, const std::vector<std::pair<int, int>>& edges, double bytes = 0);
PlanGraph plan_chain(const std::vector<double>& forward, double bytes = 0);
// The same nodes in a row: each also feeds the next, over an edge that moves nothing.
PlanGraph in_a_row(PlanGraph graph);

struct RandomPlanGraphOptions {
  int nodes = 8;
  double skip = 0.1;     // probability of an edge that other edges already imply
  bool batches = false;  // whether there are costs for micro-batches of 1, 2 and 4 samples; larger ones are cheaper for a sample
};
// A graph whose order is series-parallel. Times are in sixteenths, memory and outputs in whole bytes.
PlanGraph random_series_parallel(std::mt19937_64& random, const RandomPlanGraphOptions& options);
// A graph of any order: each pair of nodes has an edge with probability `edge`.
PlanGraph random_plan_graph(std::mt19937_64& random, int nodes, double edge);

// Modules in a row, as convolutional networks have them: five branches of three to thirteen nodes between two others, nearly 2 * 10^5
// downsets in all. One order of the nodes, drawn too, is cut into `pieces` pieces that take exactly one second each, forward and backward:
// so no plan on as many devices takes less. Nothing is sent.
PlanGraph wide_modules(std::mt19937_64& random, int pieces);

// before[a * nodes + b]: whether a path leads from a to b.
std::vector<bool> reach_of(const PlanGraph& graph);

}  // namespace penstock::test
