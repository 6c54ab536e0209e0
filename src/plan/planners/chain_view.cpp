// SPDX-License-Identifier: Apache-2.0
#include "planners/chain_view.h"

#include <algorithm>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/evaluate.h"
#include "cost/smallest_memory.h"
#include "penstock/error.h"
#include "planners/improve_plan.h"

namespace penstock {
namespace {

// For each place between nodes of an order, what crosses it for one sample.
struct Crossings {
  std::vector<double> bytes, seconds;
};

Crossings crossings_of(const PlanGraph& graph, const std::vector<int>& order) {
  const std::size_t n = order.size();
  std::vector<int> place(n), last(n, 0);
  for (std::size_t i = 0; i < n; ++i) place[order[i]] = static_cast<int>(i);
  std::vector<double> largest(n, 0);
  for (const PlanEdge& edge : graph.edges) {
    last[edge.from] = std::max(last[edge.from], place[edge.to]);
    largest[edge.from] = std::max(largest[edge.from], edge.bytes);
  }
  Crossings crossings{std::vector<double>(n + 1, 0), std::vector<double>(n + 1, 0)};
  for (std::size_t node = 0; node < n; ++node) {
    const double samples = graph.nodes[node].costs[0].samples;
    const std::vector<PlanOutput>& outputs = graph.nodes[node].outputs;
    for (int border = place[node] + 1; outputs.empty() && border <= last[node]; ++border)
      crossings.bytes[border] += largest[node] / samples;
    for (const PlanOutput& output : outputs) {
      int first = place[node], end = first;
      for (const int reader : output.readers) first = std::min(first, place[reader]), end = std::max(end, place[reader]);
      // A transfer is taken to last equally long forward and back.
      for (int border = first + 1; border <= end; ++border) crossings.seconds[border] += output.seconds / 2 / samples;
    }
  }
  return crossings;
}

// Borders of atoms. Around each even share of `load` (sums up to each place) it is the place that least crosses.
std::vector<int> borders_of(const std::vector<double>& load, const Crossings& crossings, int most_atoms) {
  const int n = static_cast<int>(load.size()) - 1;
  std::vector<int> places = {0};
  const double share = load.back() / most_atoms;
  const auto crossing = [&](int place) { return std::pair(crossings.seconds[place], crossings.bytes[place]); };
  for (int place = 1, atom = 1; place < n; ++atom) {
    if (n <= most_atoms) {
      places.push_back(place++);
      continue;
    }
    int best = -1;
    for (; place < n && (load[place] <= (atom + 0.5) * share || atom + 1 == most_atoms); ++place)
      if (load[place] > (atom - 0.5) * share && (best < 0 || crossing(place) < crossing(best))) best = place;
    if (best > 0) places.push_back(best);
    if (atom + 1 == most_atoms) break;
  }
  places.push_back(n);
  return places;
}

// Each node's load: its share of all nodes' time plus its share of their memory; sums of both.
std::vector<double> loads_of(const PlanProblem& problem, const std::vector<int>& order, const std::vector<int>& choices, int samples) {
  SetCost all;
  std::vector<SetCost> costs;
  for (const int node : order) all += costs.emplace_back(cost_of(problem.graph.nodes[node], choices[node], samples));
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0; };
  std::vector<double> loads = {0};
  for (const SetCost& cost : costs)
    loads.push_back(loads.back() + share(cost.forward + cost.backward, all.forward + all.backward) +
                    share(cost.live_bytes + cost.resident_bytes, all.live_bytes + all.resident_bytes));
  if (loads.back() == 0)
    for (std::size_t i = 0; i < loads.size(); ++i) loads[i] = static_cast<double>(i);
  return loads;
}

}  // namespace

ChainView make_chain_view(const PlanProblem& problem, std::vector<int> choices, int samples, int most_atoms, int most_replicas) {
  ChainView view;
  view.problem = &problem;
  view.samples = samples;
  view.microbatches = step_samples(problem) / samples;
  view.order = branch_order(problem.graph);
  view.choices = std::move(choices);
  const Crossings crossings = crossings_of(problem.graph, view.order);
  view.places = borders_of(loads_of(problem, view.order, view.choices, samples), crossings, most_atoms);
  for (const int place : view.places) {
    view.bytes.push_back(crossings.bytes[place]);
    view.seconds.push_back(crossings.seconds[place]);
  }
  view.before.resize(at(most_replicas));
  return view;
}

namespace {

const std::vector<SetCost>& sums_of(const ChainView& view, int replicas) {
  std::vector<SetCost>& before = view.before[replicas - 1];
  if (!before.empty()) return before;
  SetCost sum;
  int place = 0;
  for (const int border : view.places) {
    for (; place < border; ++place) {
      const int node = view.order[place];
      sum += cost_of(view.problem->graph.nodes[node], view.choices[node], static_cast<double>(view.samples) / replicas);
    }
    before.push_back(sum);
  }
  return before;
}

}  // namespace

SetCost cost_of(const ChainView& view, int begin, int end, int replicas) {
  const std::vector<SetCost>& sums = sums_of(view, replicas);
  const SetCost &a = sums[begin], &b = sums[end];
  return {.forward = b.forward - a.forward,
          .backward = b.backward - a.backward,
          .live_bytes = b.live_bytes - a.live_bytes,
          .swap_bytes = b.swap_bytes - a.swap_bytes,
          .resident_bytes = b.resident_bytes - a.resident_bytes,
          .parameter_bytes = b.parameter_bytes - a.parameter_bytes};
}

double bytes_of(const ChainView& view, int begin, int end, int replicas, int in_flight) {
  return bytes_of(cost_of(view, begin, end, replicas), std::min(in_flight, view.microbatches));
}

double transfer_seconds(const ChainView& view, int border, const ClusterLink& link, int from_replicas, int to_replicas) {
  const double share = static_cast<double>(view.samples) / std::min(from_replicas, to_replicas);
  return share * (view.bytes[border] / link.bandwidth + view.seconds[border]);
}

PlanStage stage_of(const ChainView& view, int begin, int end, std::vector<int> devices) {
  PlanStage stage;
  stage.nodes.assign(view.order.begin() + view.places[begin], view.order.begin() + view.places[end]);
  std::sort(stage.nodes.begin(), stage.nodes.end());
  for (const int node : stage.nodes) stage.choices.push_back(view.choices[node]);
  stage.devices = std::move(devices);
  stage.samples = view.samples;
  return stage;
}

int coarse_unit(int devices) {
  constexpr int kFew = 256, kUnits = 64;
  int unit = 1;
  while (devices > kFew && devices / unit > kUnits) unit *= 2;
  return unit;
}

std::vector<std::vector<double>> least_memory(const ChainView& view, InFlight in_flight, int unit, TimeLimit& limit) {
  const bool one = in_flight == InFlight::one;
  const int n = view.atoms(), most = one ? view.devices() : most_stages(view);
  if (!one) unit = 1;
  std::vector<std::vector<double>> least(at(most + 1), std::vector<double>(at(n + 1), kInfinity));
  least[0][n] = 0;
  for (int d = 1; d <= most; ++d) {
    if (d % unit != 0 && d > unit) {
      least[d] = least[d - 1];
      continue;
    }
    if (one) least[d][n] = 0;
    const int step = d < unit ? 1 : unit, most_replicas = one ? std::min(d, view.most_replicas()) : 1;
    for (int begin = 0; begin < n; ++begin)
      for (int replicas = view.most_replicas() > 1 ? step : 1; replicas <= most_replicas; replicas += step) {
        if (limit.is_over(n)) return least;
        for (int end = begin + 1; end <= n; ++end) {
          const double bytes = bytes_of(view, begin, end, replicas, one ? 1 : d);
          if (bytes >= least[d][begin]) break;
          least[d][begin] = std::min(least[d][begin], std::max(bytes, least[d - replicas][end]));
        }
      }
  }
  return least;
}

int most_stages(const ChainView& view) {
  return std::min({view.devices(), view.atoms(), most_stages(*view.problem, view.samples)});
}

namespace {

std::vector<int> ways_on_one_device(const PlanGraph& graph, bool lean, int samples) {
  std::vector<int> choices = choices_of(graph, 1, lean, samples);
  for (std::size_t node = 0; node < choices.size(); ++node)
    if (choices[node] < 0)
      throw Error(concat("node ", quote(graph.nodes[node].name), " of ", graph.name, " has no costs of one device"), {},
                  "take a planner that shares micro-batches between devices: piper or best");
  return choices;
}

// The least memory of each device for which the planner has a plan; infinite where none would do.
double least_by_trial(ChainView view, const ChainPlanner& plan, TimeLimit& limit) {
  PlanProblem enough = *view.problem;
  view.problem = &enough;
  const auto has_plan = [&](double bytes) {
    for (ClusterDevice& device : enough.cluster.devices) device.memory = bytes;
    return limit.is_over(0) || plan(view, limit).has_value();
  };
  return has_plan(kInfinity) ? smallest_memory(has_plan) : kInfinity;
}

double least_of(const ChainView& view, const ChainLimits& limits, const ChainPlanner& plan, TimeLimit& limit) {
  if (limits.by_trial) return least_by_trial(view, plan, limit);
  const auto least = least_memory(view, limits.in_flight, coarse_unit(view.devices()), limit);
  double needed = kInfinity;
  for (const int stages : stage_counts(static_cast<int>(least.size()) - 1)) needed = std::min(needed, least[at(stages)][0]);
  return needed;
}

}  // namespace

ChainPlan timed_chain(const ChainView& view, std::vector<PlanStage> stages, double bottleneck, TimeLimit& limit) {
  const PlanFigures figures = figures_of(*view.problem, stages);
  limit.is_over(forwards_of(figures));
  if (std::ranges::none_of(figures.stages, &StageFigures::swaps)) return {std::move(stages), bottleneck, step_seconds(figures)};
  Plan plan;
  plan.stages = std::move(stages);
  evaluate(*view.problem, plan);
  return {std::move(plan.stages), bottleneck, plan.predicted_time};
}

Plan plan_of_chain(const std::string& who, const PlanProblem& problem, const ChainLimits& limits, const PlanOptions& options,
                   const ChainPlanner& plan) {
  TimeLimit limit(options.seconds, options.clock);
  const auto view_of = [&](bool lean, int samples) {
    const int replicas = problem.replicas && limits.replicas ? static_cast<int>(problem.cluster.devices.size()) : 1;
    return make_chain_view(problem, ways_on_one_device(problem.graph, lean, samples), samples, limits.most_atoms, replicas);
  };
  std::optional<ChainPlan> best;
  for (const int samples : allowed_batches(problem))
    for (const bool lean : {false, true}) {
      if (limit.is_over()) break;
      std::optional<ChainPlan> found = plan(view_of(lean, samples), limit);
      if (!found) continue;
      if (!best || found->value < best->value) best = std::move(found);
      break;
    }
  if (best) {
    Plan result;
    result.stages = std::move(best->stages);
    result.bottleneck = best->bottleneck;
    return result;
  }
  double needed = kInfinity;
  for (const int samples : allowed_batches(problem)) {
    needed = std::min(needed, least_of(view_of(true, samples), limits, plan, limit));
    if (limit.is_over(0)) fail_late(who, problem.graph.name, limit);
  }
  if (needed == kInfinity)
    throw Error(concat("planner ", who, " has no stages for ", problem.graph.name, " on ", problem.cluster.devices.size(), " devices"),
                {"however much memory they have"}, "give another number of devices, or --planner best");
  fail_memory(problem.graph.name, weakest(problem.cluster).memory, needed);
}

}  // namespace penstock
