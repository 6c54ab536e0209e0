// SPDX-License-Identifier: Apache-2.0
#include "config/plan_splits.h"

#include "config/compile.h"
#include "config/mesh.h"
#include "penstock/error.h"
#include "plan/step_nodes.h"
#include "planners/degrees_step.h"
#include "transform/passes.h"

namespace penstock {
namespace {

Prepared prepared_for(const Config& config, const ModelRegistry& models, int size) {
  return prepare(config, make_schedule("sequential", {.actors = 1, .microbatches = 1}), config.train.batch / size, models);
}

// A dim lies along one axis: where positions are split over context they are not over tensor.
std::vector<Split> splits_over(int devices, int most) {
  std::vector<Split> out;
  for (int tensor = 1; tensor <= most; ++tensor)
    for (int context = 1; tensor * context <= most; ++context) {
      if (devices % (tensor * context) != 0 || tensor * context == 1) continue;
      out.push_back({.tensor = tensor, .context = context});
      if (tensor > 1 && context == 1) out.push_back({.tensor = tensor, .sequence = true});
    }
  return out;
}

}  // namespace

Config split_config(Config config, const Split& split) {
  for (auto& [dim, axis] : config.layout) axis = axis_of(config, axis);  // planners know the axes by their own names
  for (auto& [stage, dims] : config.stage_layout)
    for (auto& [dim, axis] : dims) axis = axis_of(config, axis);
  for (std::string& axis : config.chosen_axes) axis = axis_of(config, axis);
  config.axis_names.clear();
  for (const auto& [dim, axis] : Config().layout)  // planners count with the names
    if (is_chosen(config, axis)) config.layout[dim] = axis;
  config.chosen_axes.clear();
  config.pipeline.expert = 1;
  config.pipeline.tensor = split.tensor;
  config.pipeline.context = split.context;
  config.pipeline.axes = layout_axes();
  if (split.sequence) config.layout["sequence"] = "tensor";
  return config;
}

std::vector<Split> possible_splits(const Config& config, const ModelRegistry& models, int devices, int most, const DegreesLimits& only) {
  const Prepared prepared = prepared_for(config, models, static_cast<int>(config.train.batch));
  std::vector<Split> out;
  std::exception_ptr refused;
  for (const Split& split : splits_over(devices, most)) {
    if (!allows(only, split)) continue;
    try {
      axes_of(split_config(config, split), *prepared.model);
      out.push_back(split);
    } catch (const Error&) {
      refused = std::current_exception();
    }
  }
  if (out.empty() && refused && !allows(only, {})) std::rethrow_exception(refused);
  return out;
}

PlanSplit model_split(const Config& config, const ModelRegistry& models, const MergedNodes& merged, const std::vector<int>& sizes,
                      const DeviceModel& device, const PlanGraph& whole, const Split& split) {
  const Config changed = split_config(config, split);
  PlanSplit out;
  for (const int size : sizes) {
    const Prepared prepared = prepared_for(changed, models, size);
    CompileOptions options = prepared.options;
    options.axes = axes_of(changed, *prepared.model);
    options.attention = SplitAttention::automatic;  // whether a split allows another way is seen when it is run
    PlanSplit one = split_graph(eliminate_dead_code(training_graph(changed, prepared)), merged, device, options, whole);
    if (out.graph.nodes.empty())
      out = std::move(one);
    else
      add_size(out.graph, one.graph);
  }
  out.split = split;
  out.graph.name = whole.name;
  out.graph.samples = whole.samples;
  return out;
}

}  // namespace penstock
