// SPDX-License-Identifier: Apache-2.0
// A configuration's model as a graph for planning, and plans on that graph as plans of the model's own nodes.
#pragma once

#include <vector>

#include "config/compile.h"
#include "config/config.h"
#include "plan/plan_steps.h"

namespace penstock {

// Merges the model's nodes into at most so many.
MergedNodes planning_nodes(const Config& config, const ModelRegistry& models, int most);

// The sizes of micro-batches to plan with unless they are given: the configuration's own, half of it and double, as far as they divide the
// batch and leave a micro-batch for each device.
std::vector<int> planning_sizes(const Config& config, int devices);
// These sizes ascending, each once; where there are none, `otherwise`. Throws Error for a size that does not divide the batch.
std::vector<int> checked_sizes(const Config& config, std::vector<int> sizes, const std::vector<int>& otherwise);

// A training step in micro-batches of `size` samples, as it is planned.
Graph planning_step(const Config& config, const ModelRegistry& models, std::int64_t size);
// The same with a stage for each merged node.
Graph merged_step(const Config& config, const ModelRegistry& models, const MergedNodes& merged, int size);
// The graph for planning, with times by published figures at each of the sizes.
PlanGraph model_graph(const Config& config, const ModelRegistry& models, const MergedNodes& merged, const std::vector<int>& sizes,
                      const DeviceModel& device);

// A plan of merged nodes as a plan file for the configuration, with the model's own in their place. Brings the plan's stages into the order
// in which compiling it numbers them.
PlanFile model_plan(const Config& config, const ModelRegistry& models, const MergedNodes& merged, const PlanProblem& problem, Plan& plan);

// The planner and the cluster that a configuration's model is planned for.
struct ModelPlanning {
  std::string planner = "best";
  PlanOptions options = {};
  ClusterSpec cluster = {};
  std::vector<int> sizes = {};  // of micro-batches to choose from, in samples; empty: powers of two that divide the batch
  bool replicas = true;         // whether a stage may run on several devices
  int nodes = 64;               // at most so many of the model's; equal groups are planned of kMostNodes
  std::string device = {};      // whose published figures time it; "": the cluster's own (figures_for)
};

// The best first: what can be run before what cannot. Planner best also looks for equal groups that can be run, with half of the time.
// Throws Error where there is no plan.
std::vector<PlannedModel> plan_model(const Config& config, const ModelRegistry& models, const ModelPlanning& planning);

}  // namespace penstock
