// A configuration's model as a graph for planning, and plans on that graph as plans of the model's own nodes.
#pragma once

#include <vector>

#include "config/compile.h"
#include "config/config.h"
#include "plan/step_groups.h"

namespace penstock {

// Groups the model's nodes into at most so many groups.
NodeGroups planning_nodes(const Config& config, const ModelRegistry& models, int most);

// The sizes of micro-batches to plan with unless they are given: the configuration's own, half of it and double, as far as they divide the
// batch and leave a micro-batch for each device.
std::vector<int> planning_sizes(const Config& config, int devices);
// Throws Error for a size that does not divide the batch.
void check_sizes(const Config& config, const std::vector<int>& sizes);

// A training step in micro-batches of `size` samples with a stage for each group.
Graph grouped_step(const Config& config, const ModelRegistry& models, const NodeGroups& groups, int size);
// The graph for planning, with times by published figures at each of the sizes.
PlanGraph model_graph(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const std::vector<int>& sizes,
                      const DeviceModel& device);

// Writes the model's nodes in place of groups into a file of a row of stages, and drops backwards of stages that have none.
void take_model_nodes(const Config& config, const ModelRegistry& models, const NodeGroups& groups, PlanFile& file);
// A plan on groups as a plan file for the configuration, with the model's nodes in place of groups. Brings the plan's stages into the order
// in which compiling it numbers them.
PlanFile model_plan(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const PlanProblem& problem, Plan& plan);

}  // namespace penstock
