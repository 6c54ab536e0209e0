// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <map>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"

namespace penstock {
namespace {

// Least seconds that a node takes on devices of speed 1.
struct LeastSeconds {
  double work = 0;         // of a step and its update, summed over the devices that share it
  double step = 0;         // of a step, of its stage
  double micro_batch = 0;  // of the smallest micro-batch
  double update = 0;
};

// Sizes of micro-batches: those to choose from, and those that are possible of so many replicas, kept.
struct Sizes {
  const PlanProblem& problem;
  std::vector<int> allowed;
  std::map<int, std::vector<int>> possible = {};

  const std::vector<int>& of(int replicas) {
    const auto [found, is_new] = possible.try_emplace(replicas);
    if (is_new) found->second = possible_batches(problem, replicas);
    return found->second;
  }
};

// Numbers of replicas among which the least of what a node takes is found. With a share of a micro-batch on each device, its time lies on
// lines between measured sizes, so between the numbers that meet two neighbouring ones the work of a step is a line, and the time of a
// micro-batch only rises or falls. Below the smallest the work of many replicas falls until it is constant, or rises.
std::vector<int> replicas_at_ends(const PlanNode& node, int choice, const std::vector<int>& sizes, int most) {
  std::vector<int> counts;
  const NodeCost& first = node.costs[choice];
  const auto add = [&](double samples) {
    for (const int size : sizes)
      for (const double near : {std::floor(size / samples), std::ceil(size / samples)})
        counts.push_back(static_cast<int>(std::clamp(near, 1.0, 1.0 * most)));
  };
  for (std::size_t c = at(choice); c < node.costs.size() && node.costs[c].name == first.name && node.costs[c].degree == first.degree; ++c)
    add(node.costs[c].samples);
  counts.push_back(1);
  counts.push_back(most);
  std::sort(counts.begin(), counts.end());
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

LeastSeconds least_seconds(const PlanProblem& problem, const PlanNode& node, Sizes& sizes) {
  LeastSeconds least{kInfinity, kInfinity, kInfinity, kInfinity};
  const double samples = step_samples(problem);
  const int devices = static_cast<int>(problem.cluster.devices.size());
  for (const int choice : ways_of(node)) {
    const int degree = node.costs[choice].degree;
    if (degree > devices) continue;
    for (const int replicas : replicas_at_ends(node, choice, sizes.allowed, problem.replicas ? devices / degree : 1))
      for (const int size : sizes.of(replicas)) {
        const SetCost cost = cost_of(node, choice, static_cast<double>(size) / replicas);
        const double seconds = cost.forward + cost.backward;
        const double step = samples * seconds / size;
        least.work = std::min(least.work, step * degree * replicas + cost.update * degree);
        least.step = std::min(least.step, step);
        least.micro_batch = std::min(least.micro_batch, seconds);
        least.update = std::min(least.update, cost.update);
      }
  }
  return least;
}

}  // namespace

double least_step_seconds(const PlanProblem& problem) {
  Sizes sizes{problem, allowed_batches(problem)};
  double speeds = 0, fastest = 0, work = 0;
  for (const ClusterDevice& device : problem.cluster.devices) {
    speeds += device.speed;
    fastest = std::max(fastest, device.speed);
  }
  const auto& nodes = problem.graph.nodes;
  std::vector<LeastSeconds> least;
  for (const PlanNode& node : nodes) {
    least.push_back(least_seconds(problem, node, sizes));
    work += least.back().work;
  }
  // The longest paths of one micro-batch from the beginning to each node and from it to the end, without its own time. While a node does
  // its work, others may do what comes after it, but what comes before it stands before its first forward and after its last backward.
  // The update of the path's first node, or its own, is after that.
  std::vector<double> before, after(nodes.size(), 0);
  for (const LeastSeconds& node : least) before.push_back(node.update);
  std::vector<PlanEdge> edges = problem.graph.edges;
  std::sort(edges.begin(), edges.end(), [](const PlanEdge& a, const PlanEdge& b) { return a.from < b.from; });
  for (const PlanEdge& edge : edges) before[edge.to] = std::max(before[edge.to], before[edge.from] + least[edge.from].micro_batch);
  for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge)
    after[edge->from] = std::max(after[edge->from], after[edge->to] + least[edge->to].micro_batch);
  double longest = 0;
  for (std::size_t n = 0; n < nodes.size(); ++n)
    longest = std::max(longest, before[n] + std::max(least[n].step, least[n].micro_batch + after[n]));
  return std::max(work / speeds, longest / fastest);
}

}  // namespace penstock
