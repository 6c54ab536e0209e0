#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "plan/cost_model.h"
#include "plan/evaluate.h"

namespace penstock {
namespace {

// Least seconds that a node takes on devices of speed 1.
struct LeastSeconds {
  double work = 0;         // of a step and its update, summed over the devices that share it
  double step = 0;         // of a step, of its stage
  double micro_batch = 0;  // of the smallest micro-batch
  double update = 0;
};

// A host processor counts as a device of the fastest's speed, on which a node may take another time.
LeastSeconds least_seconds(const PlanProblem& problem, const PlanNode& node, const std::vector<int>& sizes, double fastest) {
  LeastSeconds least{kInfinity, kInfinity, kInfinity, kInfinity};
  const double samples = step_samples(problem);
  const int devices = static_cast<int>(problem.cluster.devices.size());
  if (uses_cpus(problem)) {
    const double sample = fastest * cpu_seconds(problem.graph, node, 1);
    least = {samples * sample, samples * sample, sample * sizes.front(), std::isfinite(sample) ? 0 : kInfinity};
  }
  for (std::size_t choice = 0; choice < node.costs.size(); ++choice) {
    const int degree = node.costs[choice].degree;
    if (choice_of(node, degree, node.costs[choice].name) != static_cast<int>(choice)) continue;
    for (int replicas = 1; replicas * degree <= devices && (replicas == 1 || problem.replicas); ++replicas)
      for (const int size : sizes) {
        const SetCost cost = cost_of(node, static_cast<int>(choice), static_cast<double>(size) / replicas);
        const double seconds = cost.forward + cost.backward;
        const double step = samples * seconds / size;
        least.work = std::min(least.work, (step + cost.update) * degree * replicas);
        least.step = std::min(least.step, step);
        least.micro_batch = std::min(least.micro_batch, seconds);
        least.update = std::min(least.update, cost.update);
      }
  }
  return least;
}

}  // namespace

double least_step_seconds(const PlanProblem& problem) {
  const std::vector<int> sizes = allowed_batches(problem);
  double speeds = 0, fastest = 0, work = 0;
  for (const ClusterDevice& device : problem.cluster.devices) {
    speeds += device.speed;
    fastest = std::max(fastest, device.speed);
  }
  if (uses_cpus(problem)) speeds += fastest * problem.cluster.cpus;
  const auto& nodes = problem.graph.nodes;
  std::vector<LeastSeconds> least;
  for (const PlanNode& node : nodes) {
    least.push_back(least_seconds(problem, node, sizes, fastest));
    work += least.back().work;
  }
  // The longest ways of one micro-batch from the beginning to each node and from it to the end, without its own time. While a node does
  // its work, others may do what comes after it, but what comes before it stands before its first forward and after its last backward.
  // The update of the way's first node, or its own, is after that.
  std::vector<double> before, after(nodes.size(), 0);
  for (const LeastSeconds& node : least) before.push_back(node.update);
  std::vector<PlanEdge> edges = problem.graph.edges;
  std::sort(edges.begin(), edges.end(), [](const PlanEdge& a, const PlanEdge& b) { return a.from < b.from; });
  for (const PlanEdge& edge : edges)
    before[at(edge.to)] = std::max(before[at(edge.to)], before[at(edge.from)] + least[at(edge.from)].micro_batch);
  for (auto edge = edges.rbegin(); edge != edges.rend(); ++edge)
    after[at(edge->from)] = std::max(after[at(edge->from)], after[at(edge->to)] + least[at(edge->to)].micro_batch);
  double longest = 0;
  for (std::size_t n = 0; n < nodes.size(); ++n)
    longest = std::max(longest, before[n] + std::max(least[n].step, least[n].micro_batch + after[n]));
  return std::max(work / speeds, longest / fastest);
}

}  // namespace penstock
