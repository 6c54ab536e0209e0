// A configuration's model as a graph for planning, and plans of it as plans of its own nodes.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "plan/plan_file.h"
#include "plan/step_nodes.h"
#include "program/program.h"
#include "runtime/compile.h"
#include "runtime/config.h"
#include "simulate/durations.h"
#include "simulate/roofline.h"

namespace penstock {

// The model's nodes by the name of what is planned as one; as merged_nodes says.
using NodeGroups = std::map<std::string, std::string>;
// At most so many groups.
NodeGroups planning_nodes(const Config& config, const ModelRegistry& models, int most);

// The sizes of micro-batches to plan with unless they are given: the configuration's own, half and double of it, as far as they divide the
// batch and leave a micro-batch for each device.
std::vector<int> planning_sizes(const Config& config, int devices);
// Throws Error for a size that does not divide the batch.
void check_sizes(const Config& config, const std::vector<int>& sizes);

// A training step in micro-batches of `size` samples with a stage for each group.
Graph grouped_step(const Config& config, const ModelRegistry& models, const NodeGroups& groups, int size);
// The same on one device, one stage after the other: what to measure the groups with.
Program grouped_program(const Graph& step);

// Times by published figures, at each of the sizes.
PlanGraph model_graph(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const std::vector<int>& sizes,
                      const DeviceModel& device);

// Of each stage and kind that the program runs, with the filling of the inputs that it waits for; `seconds`: as durations_of says.
std::map<std::pair<std::int32_t, Kind>, double> action_seconds(const Program& program, const Durations& seconds);

// Of what a grouped program runs after its loop: clipping and the optimiser's update. `seconds`: of each task.
double update_seconds(const Program& program, const std::vector<double>& seconds);
// Shares it among the nodes by the bytes of their parameters.
void share_update(PlanGraph& graph, double seconds);

// Which of the step's stages feed which, and what each has to do.
StageShape shape_of(const Graph& step);
// The table without backwards of stages that have none (an addition hands its gradient on).
Schedule without_missing(Schedule schedule, const StageShape& shape);

// The model's nodes in place of groups in a file of a row of stages, and no backward of stages that have none.
void take_model_nodes(const Config& config, const ModelRegistry& models, const NodeGroups& groups, PlanFile& file);
// A plan on the groups as one of the configuration, with the model's nodes in place of groups. Brings the plan's stages into the order in
// which compiling it numbers them.
PlanFile model_plan(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const PlanProblem& problem, Plan& plan);

}  // namespace penstock
