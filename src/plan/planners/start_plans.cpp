// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <random>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "planners/improve_plan.h"

namespace penstock {
namespace {

// Cuts an order into pieces, none with more than some load.
class Pieces {
 public:
  Pieces(const PlanProblem& problem, std::vector<int> order, std::vector<int> choices, int degree, int samples)
      : problem_(problem), order_(std::move(order)), choices_(std::move(choices)), degree_(degree), samples_(samples) {
    for (const int node : order_) costs_.push_back(cost_of(problem.graph.nodes[node], choices_[node], samples));
    for (const SetCost& cost : costs_) total_ += load(cost);
  }

  // The cut of nearly the least largest load, on consecutive ones of these devices; empty: nothing fits.
  std::vector<PlanStage> cut(const std::vector<int>& devices, bool keep_memory) const {
    double low = 0, high = total_ / weakest(problem_.cluster, devices).speed;
    std::vector<PlanStage> best = cut_at(high, devices, keep_memory);
    for (int round = 0; round < 30 && !best.empty(); ++round) {
      const double middle = (low + high) / 2;
      std::vector<PlanStage> stages = cut_at(middle, devices, keep_memory);
      (stages.empty() ? low : high) = middle;
      if (!stages.empty()) best = std::move(stages);
    }
    return best;
  }

 private:
  // The load of one micro-batch, with its share of the update.
  double load(const SetCost& cost) const { return cost.forward + cost.backward + cost.update * samples_ / step_samples(problem_); }

  // Cuts from the end, where the nth stage has n micro-batches in flight.
  std::vector<PlanStage> cut_at(double most, const std::vector<int>& devices, bool keep_memory) const {
    std::vector<PlanStage> stages;
    int left = static_cast<int>(order_.size());
    for (std::size_t end = devices.size(); end >= at(degree_) && left > 0; end -= at(degree_)) {
      PlanStage stage;
      stage.devices.assign(devices.begin() + static_cast<std::ptrdiff_t>(end) - degree_,
                           devices.begin() + static_cast<std::ptrdiff_t>(end));
      std::sort(stage.devices.begin(), stage.devices.end());
      stage.degree = degree_;
      stage.samples = samples_;
      left = fill(stage, left, most, keep_memory ? static_cast<double>(stages.size() + 1) : 0);
      if (!stage.nodes.empty()) stages.push_back(std::move(stage));
    }
    if (left > 0) return {};
    std::reverse(stages.begin(), stages.end());
    return stages;
  }

  // Gives the stage as many of the last of the first `left` nodes of the order as fit, and returns how many are left. in_flight 0: memory
  // does not count.
  int fill(PlanStage& stage, int left, double most, double in_flight) const {
    const ClusterDevice device = weakest(problem_.cluster, stage.devices);
    SetCost sum;
    for (; left > 0; --left) {
      sum += costs_[left - 1];
      if (load(sum) / device.speed > most * (1 + 1e-9)) break;
      if (in_flight > 0 && sum.resident_bytes + sum.live_bytes * in_flight > device.memory) break;
      stage.nodes.push_back(order_[left - 1]);
    }
    std::sort(stage.nodes.begin(), stage.nodes.end());
    for (const int node : stage.nodes) stage.choices.push_back(choices_[node]);
    return left;
  }

  const PlanProblem& problem_;
  std::vector<int> order_, choices_;
  int degree_, samples_;
  std::vector<SetCost> costs_;  // by position in the order
  double total_ = 0;
};

void fastest_first(const ClusterSpec& cluster, std::vector<int>& devices) {
  std::stable_sort(devices.begin(), devices.end(), [&](int a, int b) { return cluster.devices[a].speed > cluster.devices[b].speed; });
}

// The fastest `count` devices, in orders that may matter: the cluster's and, where speeds differ, the fastest first or last and some at
// random.
std::vector<std::vector<int>> device_orders(const ClusterSpec& cluster, int count) {
  constexpr int kByChance = 12;
  std::vector<int> devices = fastest_devices(cluster, count);
  std::vector<std::vector<int>> orders = {devices};
  fastest_first(cluster, devices);
  if (cluster.devices[devices.front()].speed == cluster.devices[devices.back()].speed) return orders;
  orders.push_back(devices);
  orders.emplace_back(devices.rbegin(), devices.rend());
  std::mt19937_64 random(0);
  for (int i = 0; i < kByChance && count > 2; ++i) {
    for (std::size_t d = devices.size(); d > 1; --d) std::swap(devices[d - 1], devices[random() % d]);
    orders.push_back(devices);
  }
  return orders;
}

// Gives devices without a stage to the stages that have most to do for each of their devices; if there are very many, several at a time.
std::vector<PlanStage> with_replicas(const PlanProblem& problem, std::vector<PlanStage> stages) {
  constexpr std::size_t kShare = 64;  // each time 1/kShare of the idle devices is given away
  std::vector<int> idle = idle_devices(problem.cluster, stages);
  const auto load = [&](const PlanStage& stage) {
    const SetCost cost = cost_of(problem.graph, stage.nodes, stage.choices, static_cast<double>(stage.samples) / stage.replicas());
    return cost.forward + cost.backward;
  };
  std::vector<double> loads;
  for (const PlanStage& stage : stages) loads.push_back(load(stage));
  const std::size_t degree = at(stages[0].degree);
  while (idle.size() >= degree) {
    const std::size_t most = at(std::max_element(loads.begin(), loads.end()) - loads.begin());
    const std::size_t count = std::max<std::size_t>(idle.size() / degree / kShare, 1) * degree;
    std::vector<int>& devices = stages[most].devices;
    devices.insert(devices.end(), idle.end() - static_cast<std::ptrdiff_t>(count), idle.end());
    std::sort(devices.begin(), devices.end());
    idle.resize(idle.size() - count);
    loads[most] = load(stages[most]);
  }
  return stages;
}

}  // namespace

std::vector<int> branch_order(const PlanGraph& graph) {
  std::vector<std::vector<int>> readers(graph.nodes.size());
  std::vector<int> waits(graph.nodes.size(), 0), ready, order;
  for (const PlanEdge& edge : graph.edges) {
    readers[edge.from].push_back(edge.to);
    ++waits[edge.to];
  }
  for (int n = static_cast<int>(graph.nodes.size()); n-- > 0;)
    if (waits[n] == 0) ready.push_back(n);
  while (!ready.empty()) {
    const int node = order.emplace_back(ready.back());
    ready.pop_back();
    for (auto reader = readers[node].rbegin(); reader != readers[node].rend(); ++reader)
      if (--waits[*reader] == 0) ready.push_back(*reader);
  }
  return order;
}

std::vector<int> choices_of(const PlanGraph& graph, int degree, bool lean, int samples) {
  std::vector<int> choices;
  for (const PlanNode& node : graph.nodes) {
    int best = -1;
    const auto value = [&](int c) {
      const SetCost cost = cost_of(node, c, samples);
      return std::pair(lean ? cost.live_bytes + cost.swap_bytes + cost.resident_bytes : 0, cost.forward + cost.backward);
    };
    for (const int way : ways_of(node, degree))
      if (best < 0 || value(way) < value(best)) best = way;
    choices.push_back(best);
  }
  return choices;
}

std::vector<int> fastest_devices(const ClusterSpec& cluster, int count) {
  std::vector<int> devices(cluster.devices.size());
  std::iota(devices.begin(), devices.end(), 0);
  fastest_first(cluster, devices);
  devices.resize(at(count));
  std::sort(devices.begin(), devices.end());
  return devices;
}

std::vector<int> stage_counts(int most) {
  std::vector<int> counts;
  for (int count = most; count > 0; count = count > 8 ? count / 2 : count - 1) counts.push_back(count);
  return counts;
}

std::vector<std::vector<PlanStage>> starting_stages(const PlanProblem& problem, TimeLimit& limit) {
  const int devices = static_cast<int>(problem.cluster.devices.size()), nodes = static_cast<int>(problem.graph.nodes.size());
  std::vector<int> given(problem.graph.nodes.size());
  std::iota(given.begin(), given.end(), 0);
  std::vector<std::vector<int>> orders = {given, branch_order(problem.graph)};
  if (orders[0] == orders[1]) orders.pop_back();
  std::vector<std::vector<PlanStage>> starts;
  const auto add = [&](const Pieces& pieces, const std::vector<int>& on) {
    std::vector<PlanStage> stages = pieces.cut(on, true);
    if (stages.empty()) stages = pieces.cut(on, false);
    if (problem.replicas && static_cast<int>(stages.size()) * stages[0].degree < devices) starts.push_back(with_replicas(problem, stages));
    starts.push_back(std::move(stages));
  };
  const auto is_over = [&] { return !starts.empty() && limit.is_over(); };
  for (const int degree : degrees_of(problem.graph, devices))
    for (const int size : allowed_batches(problem))
      for (const bool lean : {false, true}) {
        const std::vector<int> choices = choices_of(problem.graph, degree, lean, size);
        if (std::count(choices.begin(), choices.end(), -1) > 0) continue;
        if (lean && choices == choices_of(problem.graph, degree, false, size)) continue;
        for (const auto& order : orders) {
          if (is_over()) return starts;
          const Pieces pieces(problem, order, choices, degree, size);
          for (const int count : stage_counts(std::min({devices / degree, nodes, most_stages(problem, size)})))
            for (const auto& on : device_orders(problem.cluster, count * degree)) {
              if (is_over()) return starts;
              add(pieces, on);
            }
        }
      }
  return starts;
}

}  // namespace penstock
