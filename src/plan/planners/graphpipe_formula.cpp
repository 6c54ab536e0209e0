// SPDX-License-Identifier: Apache-2.0
#include "planners/graphpipe_formula.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "cost/cost_model.h"
#include "cost/iteration_time.h"
#include "planners/improve_plan.h"

namespace penstock {
namespace {

// Small changes are tried a thousand times for each node of a small graph, and in larger ones as often as takes about as long.
constexpr int kTriesForNode = 1000, kTriedNodes = 100'000, kClimbs = 3;

std::vector<StageBorder> stage_borders(const PlanGraph& graph, const StageCosting& costing, const std::vector<PlanStage>& stages) {
  const std::vector<int> of = places_of(graph, stages).stage;
  std::vector<std::pair<int, int>> moved;  // stage, and a node whose output it sends or is sent
  for (const PlanEdge& edge : graph.edges)
    if (of[edge.from] != of[edge.to]) moved.insert(moved.end(), {{of[edge.from], edge.from}, {of[edge.to], edge.from}});
  std::ranges::sort(moved);
  moved.erase(std::ranges::unique(moved).begin(), moved.end());
  const std::vector<double> bytes = output_bytes(graph);
  std::vector<StageBorder> borders(stages.size());
  std::vector<char> sends(stages.size()), is_sent(stages.size());
  for (const auto& [stage, node] : moved) {
    borders[stage].bytes += static_cast<float>(bytes[node]);
    (of[node] == stage ? sends : is_sent)[stage] = 1;
  }
  for (std::size_t s = 0; s < stages.size(); ++s) borders[s].latency = static_cast<float>(costing.link.latency * (sends[s] + is_sent[s]));
  return borders;
}

// Null where stages cannot be run so.
const StageOption* option_for_stage(const StageCosting& costing, const PlanStage& stage) {
  const auto is_known = [&](int device) { return std::ranges::binary_search(costing.devices, device); };
  if (stage.degree != 1 || !std::ranges::all_of(stage.devices, is_known)) return nullptr;
  const auto found = std::ranges::find_if(
      costing.options, [&](const StageOption& o) { return o.samples == stage.samples && o.replicas == stage.replicas(); });
  return found == costing.options.end() ? nullptr : &*found;
}

double stage_seconds(const SetCost& cost, const StageCosting& costing, const StageBorder& border, const StageOption& option) {
  return seconds_per_sample((cost.forward + cost.backward) / costing.speed, border, cost.parameter_bytes, option);
}

SetCost stage_cost(const PlanGraph& graph, const StageCosting& costing, const PlanStage& stage, const StageOption& option) {
  return cost_of(graph, stage.nodes, stage.choices, costing.shares[option.share]);
}

// --- every split of a small graph ---

constexpr std::size_t kEveryNodes = 10, kEveryDevices = 8;
constexpr double kSmallestGain = 1 - 1e-9;  // a gain smaller than this is not worth looking for
constexpr std::int64_t kSplitWork = 64;     // elementary steps for a node that is given to a stage

struct EverySplit {
  const PlanProblem& problem;
  const StageCosting& costing;
  TimeLimit& limit;
  GraphpipePlan best;
  std::vector<double> work = {};  // of each node: device seconds for a sample, at least
  // The split that is made, or whose stages are given options; of the latter by stage: seconds for a sample under each option, and the
  // longest path up to it.
  std::vector<PlanStage> stages = {};
  StageShape shape = {};
  std::vector<std::vector<double>> per_sample = {};
  std::vector<double> path = {};
};

// Gives the stages from s on each option; the devices before `device` are taken. `slowest`, `longest`: of the stages before.
void choose_options(EverySplit& in, std::size_t s, std::size_t device, double slowest, double longest) {
  if (s == in.stages.size()) {
    if (!sizes_agree(in.problem, in.stages)) return;
    GraphpipePlan found = by_formula(in.problem.graph, in.costing, in.stages, in.shape);
    if (found.lack == 0 && found.time < in.best.time) in.best = std::move(found);
    return;
  }
  double before = 0;
  for (const std::int32_t p : in.shape.predecessors[s]) before = std::max(before, in.path[p]);
  for (std::size_t o = 0; o < in.costing.options.size(); ++o) {
    const StageOption& option = in.costing.options[o];
    const std::size_t next = device + at(option.replicas), later = in.stages.size() - s - 1;
    if (next + later > in.costing.devices.size()) continue;
    const double slower = std::max(slowest, in.per_sample[s][o]);
    in.path[s] = before + option.samples * in.per_sample[s][o];
    const double longer = std::max(longest, in.path[s]);
    if (in.costing.samples * slower + longer >= in.best.time * kSmallestGain) continue;
    in.stages[s].samples = option.samples;
    const auto first = in.costing.devices.begin();
    in.stages[s].devices.assign(first + static_cast<std::ptrdiff_t>(device), first + static_cast<std::ptrdiff_t>(next));
    choose_options(in, s + 1, next, slower, longer);
  }
}

void place_split(EverySplit& in) {
  const std::vector<PlanStage> split = in.stages;
  if (order_stages(in.problem.graph, in.stages)) {
    in.shape = shape_of(in.problem.graph, in.stages);
    in.per_sample.assign(split.size(), {});
    in.path.resize(split.size());
    const std::vector<StageBorder> borders = stage_borders(in.problem.graph, in.costing, in.stages);
    for (std::size_t s = 0; s < split.size(); ++s)
      for (const StageOption& option : in.costing.options)
        in.per_sample[s].push_back(
            stage_seconds(stage_cost(in.problem.graph, in.costing, in.stages[s], option), in.costing, borders[s], option));
    choose_options(in, 0, 0, 0, 0);
  }
  in.stages = split;
}

// False where the stages, with the nodes that they have already, need more devices than there are to be quick enough.
bool is_quick_enough(const EverySplit& in) {
  const double most = in.best.time / (in.costing.samples + in.costing.options.front().samples);
  double devices = 0;
  for (const PlanStage& stage : in.stages) {
    double work = 0;
    for (const int node : stage.nodes) work += in.work[node];
    devices += std::max(1.0, std::ceil(work / most * kSmallestGain));
  }
  return devices <= static_cast<double>(in.costing.devices.size());
}

// Gives `node` to each stage in turn and to a new one, so that every split occurs once.
void split_nodes(EverySplit& in, int node) {
  if (in.limit.is_over(kSplitWork)) return;
  if (at(node) == in.work.size()) return place_split(in);
  for (std::size_t s = 0; s <= in.stages.size(); ++s) {
    if (s == in.stages.size()) in.stages.emplace_back();
    in.stages[s].nodes.push_back(node);
    in.stages[s].choices.push_back(in.costing.choices[node]);
    if (is_quick_enough(in)) split_nodes(in, node + 1);
    in.stages[s].nodes.pop_back();
    in.stages[s].choices.pop_back();
    if (in.stages[s].nodes.empty()) return in.stages.pop_back();
  }
}

GraphpipePlan best_split(const PlanProblem& problem, const StageCosting& costing, GraphpipePlan best, TimeLimit& limit) {
  EverySplit in{problem, costing, limit, std::move(best)};
  for (std::size_t i = 0; i < problem.graph.nodes.size(); ++i) {
    double least = kInfinity;
    for (const double share : costing.shares) {
      const SetCost cost = cost_of(problem.graph.nodes[i], costing.choices[i], share);
      least = std::min(least, (cost.forward + cost.backward) / costing.speed / share);
    }
    in.work.push_back(least);
  }
  split_nodes(in, 0);
  return std::move(in.best);
}

}  // namespace

GraphpipePlan by_formula(const PlanGraph& graph, const StageCosting& costing, std::vector<PlanStage> stages, const StageShape& shape) {
  const std::vector<StageBorder> borders = stage_borders(graph, costing, stages);
  std::vector<double> per_sample;
  std::vector<SetCost> costs;
  std::vector<int> sizes;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const StageOption* option = option_for_stage(costing, stages[s]);
    if (option == nullptr) return {.plan = {}, .time = kInfinity};
    costs.push_back(stage_cost(graph, costing, stages[s], *option));
    per_sample.push_back(stage_seconds(costs[s], costing, borders[s], *option));
    sizes.push_back(option->samples);
  }
  GraphpipePlan out;
  const std::vector<int> in_flight = graphpipe_in_flight(shape, sizes);
  for (std::size_t s = 0; s < stages.size(); ++s) {
    stages[s].ahead = in_flight[s] / sizes[s];
    const double bytes = costs[s].resident_bytes + stages[s].ahead * costs[s].live_bytes;
    if (!fits(bytes, costing.memory)) out.lack += bytes / costing.memory - 1;
  }
  out.plan.stages = std::move(stages);
  out.plan.bottleneck = std::ranges::max(per_sample);
  out.time = iteration_time(shape, sizes, per_sample, costing.samples, out.plan.bottleneck);
  return out;
}

GraphpipePlan improved_by_formula(const PlanProblem& problem, const StageCosting& costing, const Plan& plan, TimeLimit& limit) {
  const PlanGraph& graph = problem.graph;
  const auto value_of = [&](const std::vector<PlanStage>& stages) { return by_formula(graph, costing, stages, shape_of(graph, stages)); };
  if (graph.nodes.size() <= kEveryNodes && costing.devices.size() <= kEveryDevices)
    return best_split(problem, costing, value_of(plan.stages), limit);
  const auto score = [&](const std::vector<PlanStage>& stages) {
    const GraphpipePlan value = value_of(stages);
    return PlanScore{value.lack, value.time};
  };
  const int nodes = static_cast<int>(graph.nodes.size()), tries = std::min(kTriesForNode * nodes, kTriedNodes / nodes);
  std::vector<PlanStage> stages = plan.stages;
  for (std::uint64_t seed = 0; seed < kClimbs; ++seed)
    stages = improve_stages(problem, std::move(stages), {.seed = seed, .tries = tries, .score = score}, limit);
  return value_of(stages);
}

}  // namespace penstock
