// SPDX-License-Identifier: Apache-2.0
#include "planners/stage_line.h"

#include <algorithm>
#include <utility>

#include "base/numbers.h"
#include "cost/cost_model.h"

namespace penstock {
namespace {

void add_borders(StageLine& line) {
  const int n = line.size();
  const std::vector<double> bytes = output_bytes(*line.graph);
  std::vector<int> place(at(n)), last_reader(at(n), -1);
  std::vector<std::vector<int>> feeders(at(n));  // by place
  for (int i = 0; i < n; ++i) place[line.order[i]] = i;
  for (const PlanEdge& edge : line.graph->edges) {
    const int from = place[edge.from], to = place[edge.to];
    feeders[to].push_back(from);
    last_reader[from] = std::max(last_reader[from], to);
  }
  const double latency = line.costing->link.latency;
  std::vector<int> counted(at(n), -1);  // the end of the interval that counted it last as an input
  line.borders.resize(at(n) * at(n + 1) / 2);
  for (int end = 1; end <= n; ++end) {
    double in = 0, out = 0;
    int inputs = 0, outputs = 0;
    for (int begin = end; begin-- > 0;) {
      const double own = bytes[line.order[begin]];
      if (counted[begin] == end) in -= own, --inputs;
      if (last_reader[begin] >= end) out += own, ++outputs;
      for (const int feeder : feeders[begin])
        if (std::exchange(counted[feeder], end) != end) in += bytes[line.order[feeder]], ++inputs;
      StageBorder& border = line.borders[at(end) * at(end - 1) / 2 + at(begin)];
      border.bytes = static_cast<float>(std::max(in, 0.0) + out);
      border.latency = static_cast<float>(latency * ((inputs > 0) + (outputs > 0)));
    }
  }
}

void add_sums(StageLine& line) {
  const StageCosting& costing = *line.costing;
  const std::size_t n = line.order.size();
  line.seconds.assign(costing.shares.size(), std::vector<double>(n + 1));
  line.live = line.seconds;
  line.resident.resize(n + 1), line.parameters.resize(n + 1), line.work.resize(n + 1), line.equal.resize(n + 1);
  for (std::size_t i = 0; i < n; ++i) {
    const PlanNode& node = line.graph->nodes[line.order[i]];
    const int choice = costing.choices[line.order[i]];
    double least = kInfinity;
    for (std::size_t s = 0; s < costing.shares.size(); ++s) {
      const SetCost cost = cost_of(node, choice, costing.shares[s]);
      const double seconds = (cost.forward + cost.backward) / costing.speed;
      least = std::min(least, seconds / costing.shares[s]);
      line.seconds[s][i + 1] = line.seconds[s][i] + seconds;
      line.live[s][i + 1] = line.live[s][i] + cost.live_bytes;
    }
    const NodeCost& cost = node.costs[choice];
    line.resident[i + 1] = line.resident[i] + cost.resident_bytes;
    line.parameters[i + 1] = line.parameters[i] + cost.parameter_bytes;
    line.work[i + 1] = line.work[i] + least;
    line.equal[i + 1] = line.equal[i] + node.equal_batches;
  }
}

// Appends a component's nodes; a fork is appended before those inside of it.
void append(const SeriesParallel& tree, int component, std::vector<int>& order, std::vector<Fork>& forks) {
  const SeriesParallel::Component& p = tree.components[component];
  if (p.kind == SeriesParallel::Kind::kNode) return order.push_back(p.node);
  const std::size_t fork = forks.size();
  if (p.kind == SeriesParallel::Kind::kParallel) forks.push_back({{static_cast<int>(order.size())}});
  for (const int inside : p.components) {
    append(tree, inside, order, forks);
    if (p.kind == SeriesParallel::Kind::kParallel) forks[fork].bounds.push_back(static_cast<int>(order.size()));
  }
}

// A fork of many branches is searched as a fork of this many bundles of neighbours, of about equal work.
constexpr int kMostBranches = 32;
constexpr int kFewBranches = 8;

void bundle(const StageLine& line, Fork& fork) {
  if (static_cast<int>(fork.bounds.size()) <= kMostBranches + 1) return;
  const double share = (line.work[fork.end()] - line.work[fork.begin()]) / kMostBranches;
  std::vector<int> kept = {fork.begin()};
  for (std::size_t i = 1; i + 1 < fork.bounds.size(); ++i)
    if (line.work[fork.bounds[i]] - line.work[kept.back()] >= share) kept.push_back(fork.bounds[i]);
  kept.push_back(fork.end());
  fork.bounds = std::move(kept);
}

}  // namespace

std::vector<double> output_bytes(const PlanGraph& graph) {
  std::vector<double> bytes(graph.nodes.size());
  for (const PlanEdge& edge : graph.edges)
    bytes[edge.from] = std::max(bytes[edge.from], edge.bytes / graph.nodes[edge.from].costs[0].samples);
  return bytes;
}

StageLine make_line(const PlanGraph& graph, const StageCosting& costing, std::vector<int> order, std::vector<Fork> forks) {
  StageLine line;
  line.graph = &graph;
  line.costing = &costing;
  line.order = std::move(order);
  line.forks = std::move(forks);
  add_sums(line);
  add_borders(line);
  line.forks_ending.resize(line.order.size() + 1);
  for (std::size_t f = 0; f < line.forks.size(); ++f) {
    Fork& fork = line.forks[f];
    bundle(line, fork);
    const int branches = static_cast<int>(fork.bounds.size()) - 1;
    for (int j = branches <= kFewBranches ? 2 : branches; j <= branches; ++j)
      line.forks_ending[fork.bounds[j]].emplace_back(static_cast<int>(f), j);
  }
  return line;
}

StageLine make_line(const PlanGraph& graph, const StageCosting& costing, const SeriesParallel& tree) {
  std::vector<int> order;
  std::vector<Fork> forks;
  append(tree, static_cast<int>(tree.components.size()) - 1, order, forks);
  return make_line(graph, costing, std::move(order), std::move(forks));
}

}  // namespace penstock
