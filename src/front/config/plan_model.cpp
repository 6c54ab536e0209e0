// SPDX-License-Identifier: Apache-2.0
#include "config/plan_model.h"

#include <algorithm>

#include "base/text.h"
#include "config/equal_layers.h"
#include "config/plan_splits.h"
#include "config/planned_config.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "cost/figures_for.h"
#include "lower/lower.h"
#include "penstock/error.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// Powers of two that divide the batch, the smallest first: no share of a micro-batch is smaller than one that has costs.
std::vector<int> published_sizes(const Config& config, int most) {
  std::vector<int> sizes;
  for (int size = 1; size <= most && config.train.batch % size == 0; size *= 2) sizes.push_back(size);
  return sizes;
}

struct ModelProblem : MergedProblem {
  std::optional<EqualLayers> layers = {};  // where fewer of them were costed
};

std::vector<int> sizes_of(const Config& config, const ModelPlanning& planning, bool equal_groups) {
  return checked_sizes(config, planning.sizes, published_sizes(config, equal_groups ? 4 : 128));
}

// The graph by published figures; of a model of many equal layers by those of few.
PlanGraph costed_graph(const Config& config, const ModelRegistry& models, const ModelPlanning& planning, const ModelProblem& of,
                       const std::vector<int>& sizes) {
  const DeviceModel& device = published_devices().device(figures_for(planning.cluster, planning.device));
  if (!of.layers) return model_graph(config, models, of.merged, sizes, device);
  const Config& few = of.layers->few;
  return expanded(*of.layers, model_graph(few, models, planning_nodes(few, models, kMostNodes), sizes, device));
}

ModelProblem problem_of(const Config& config, const ModelRegistry& models, const ModelPlanning& planning, bool equal_groups) {
  ModelProblem out;
  if (equal_groups) out.layers = equal_layers(config, models);
  if (out.layers)
    for (const std::string& name : out.layers->names) out.merged[name] = name;
  else
    out.merged = planning_nodes(config, models, equal_groups ? kMostNodes : planning.nodes);
  out.problem.graph = costed_graph(config, models, planning, out, sizes_of(config, planning, equal_groups));
  out.problem.cluster = with_host_links(planning.cluster, planning.device);
  out.problem.batches = planning.sizes;
  out.problem.replicas = planning.replicas;
  out.program = [&](const PlanFile& plan) {
    Config run = config;
    take_plan(run, plan);
    Prepared prepared = prepare(run, plan, models);
    spread_actors(run, prepared);
    return std::optional(compile_training(run, prepared));
  };
  return out;
}

StepOfSize steps_of(const Config& config, const ModelRegistry& models) {
  return [&](int size) { return planning_step(config, models, size); };
}

// The problem with the model's tensors split over up to so many devices, too.
ModelProblem with_splits(const Config& config, const ModelRegistry& models, const ModelPlanning& planning, ModelProblem out, int most) {
  const auto devices = static_cast<int>(planning.cluster.devices.size());
  const std::vector<int> sizes = sizes_of(config, planning, /*equal_groups=*/true);
  const DeviceModel& device = published_devices().device(figures_for(planning.cluster, planning.device));
  const Config& costed = out.layers ? out.layers->few : config;
  const MergedNodes merged = out.layers ? planning_nodes(costed, models, kMostNodes) : out.merged;
  const PlanGraph whole = out.layers ? model_graph(costed, models, merged, {sizes[0]}, device) : out.problem.graph;
  for (const Split& split : possible_splits(costed, models, devices, most, planning.options.degrees.only)) {
    PlanSplit found = model_split(costed, models, merged, sizes, device, whole, split);
    if (out.layers) found.graph = expanded(*out.layers, found.graph);
    out.problem.splits.push_back(std::move(found));
  }
  return out;
}

// Equal groups: tensors are split inside of a host or, where no such plan is, over several.
PlannedModel planned_groups(const Config& config, const ModelRegistry& models, const ModelPlanning& planning, const PlannerInfo& planner,
                            const ModelProblem& whole) {
  constexpr int kMostSplit = 64;
  const DegreesLimits& only = planning.options.degrees.only;
  const auto devices = static_cast<int>(planning.cluster.devices.size());
  const int host = planning.cluster.levels.empty() ? devices : planning.cluster.levels[0].size;
  const bool is_fixed = only.tensor > 0 || only.context > 0;
  const int wide = std::min(devices, is_fixed ? devices : std::max(host, kMostSplit));
  const auto plan = [&](int most) {
    return planned_model(steps_of(config, models), with_splits(config, models, planning, whole, most), planner, planning.options);
  };
  if (is_fixed || wide == host) return plan(wide);
  try {
    return plan(host);
  } catch (const Error&) {
    return plan(wide);
  }
}

}  // namespace

Graph planning_step(const Config& config, const ModelRegistry& models, std::int64_t size) {
  const Schedule any = make_schedule("sequential", {.actors = 1, .microbatches = 1});
  return eliminate_dead_code(drop_constraints(training_graph(config, prepare(config, any, config.train.batch / size, models))));
}

MergedNodes planning_nodes(const Config& config, const ModelRegistry& models, int most) {
  return merge_nodes(planning_step(config, models, config.train.batch / config.pipeline.table.microbatches), most);
}

std::vector<int> planning_sizes(const Config& config, int devices) {
  const auto batch = static_cast<int>(config.train.batch), own = batch / config.pipeline.table.microbatches;
  std::vector<int> sizes;
  for (const int size : {own / 2, own, 2 * own})
    if (size >= 1 && batch % size == 0 && (size == own || batch / size >= devices)) sizes.push_back(size);
  return sizes;
}

std::vector<int> checked_sizes(const Config& config, std::vector<int> sizes, const std::vector<int>& otherwise) {
  for (const int size : sizes)
    if (size < 1 || config.train.batch % size != 0)
      throw Error(concat("micro-batches of ", size, " sequences do not divide train.batch = ", config.train.batch), {},
                  "give sizes that divide the batch");
  if (sizes.empty()) return otherwise;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

Graph merged_step(const Config& config, const ModelRegistry& models, const MergedNodes& merged, int size) {
  return mark_stages(planning_step(config, models, size), merged);
}

PlanGraph model_graph(const Config& config, const ModelRegistry& models, const MergedNodes& merged, const std::vector<int>& sizes,
                      const DeviceModel& device) {
  PlanGraph graph = graph_of_sizes(steps_of(config, models), sizes, [&](const Graph& step) { return plan_graph(step, merged, device); });
  graph.name = config.model.name;
  graph.samples = static_cast<int>(config.train.batch);
  return graph;
}

PlanFile model_plan(const Config& config, const ModelRegistry& models, const MergedNodes& merged, const PlanProblem& problem, Plan& plan) {
  return plan_of_nodes(planning_step(config, models, batch_of(problem, plan.stages[0])), merged, problem, plan);
}

std::vector<PlannedModel> plan_model(const Config& config, const ModelRegistry& models, const ModelPlanning& planning) {
  const PlannerInfo& planner = planner_named(planning.planner);
  const ModelProblem own = problem_of(config, models, planning, planner.equal_groups);
  if (planner.equal_groups) return {planned_groups(config, models, planning, planner, own)};
  std::optional<MergedProblem> equal;
  if (planner.races) equal = problem_of(config, models, planning, /*equal_groups=*/true);
  return planned_models(steps_of(config, models), own, equal, planner, planning.options);
}

}  // namespace penstock
