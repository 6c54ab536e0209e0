// A configuration's model as a graph for planning, and plans on that graph as plans of the model's own nodes.
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

// Which of the model's nodes are planned as one: by node, the group's name, as merged_nodes gives it.
using NodeGroups = std::map<std::string, std::string>;
// Groups the model's nodes into at most so many groups.
NodeGroups planning_nodes(const Config& config, const ModelRegistry& models, int most);

// The sizes of micro-batches to plan with unless they are given: the configuration's own, half of it and double, as far as they divide the
// batch and leave a micro-batch for each device.
std::vector<int> planning_sizes(const Config& config, int devices);
// Throws Error for a size that does not divide the batch.
void check_sizes(const Config& config, const std::vector<int>& sizes);

// A training step in micro-batches of `size` samples with a stage for each group.
Graph grouped_step(const Config& config, const ModelRegistry& models, const NodeGroups& groups, int size);
// The same as a program for one device, one stage after the other, with which the groups are measured.
Program grouped_program(const Graph& step);

// The graph for planning, with times by published figures at each of the sizes.
PlanGraph model_graph(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const std::vector<int>& sizes,
                      const DeviceModel& device);

// Seconds of each stage and kind that the program runs, including the filling of inputs that it waits for. `seconds`: as durations_of says.
std::map<std::pair<std::int32_t, Kind>, double> action_seconds(const Program& program, const Durations& seconds);

// Seconds of what a grouped program runs after its loop, clipping and the optimiser's update. `seconds`: of each task.
double update_seconds(const Program& program, const std::vector<double>& seconds);
// Shares the update's time among the nodes by the bytes of their parameters.
void share_update(PlanGraph& graph, double seconds);

// Which of the step's stages feed which, and which passes each has.
StageShape shape_of(const Graph& step);
// The table without the backwards of stages that have none (an addition hands its gradient on).
Schedule without_missing(Schedule schedule, const StageShape& shape);

// Writes the model's nodes in place of groups into a file of a row of stages, and drops backwards of stages that have none.
void take_model_nodes(const Config& config, const ModelRegistry& models, const NodeGroups& groups, PlanFile& file);
// A plan on groups as a plan file for the configuration, with the model's nodes in place of groups. Brings the plan's stages into the order
// in which compiling it numbers them.
PlanFile model_plan(const Config& config, const ModelRegistry& models, const NodeGroups& groups, const PlanProblem& problem, Plan& plan);

}  // namespace penstock
