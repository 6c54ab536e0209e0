// SPDX-License-Identifier: Apache-2.0
// A step's nodes merged into fewer that are planned as one each, and plans of merged nodes as plans of the step's own.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "lower/lower.h"
#include "penstock/graph.h"
#include "penstock/plan.h"
#include "penstock/plan_file.h"
#include "plan/step_nodes.h"
#include "simulate/durations.h"
#include "simulate/roofline.h"

namespace penstock {

// A step's nodes (step_nodes.h) by the name of the merged node that each is planned in.
using MergedNodes = std::map<std::string, std::string>;
// At most `most` merged nodes where that adds no order, of the cheapest neighbours.
MergedNodes merge_nodes(const Graph& step, int most);

// A graph to plan with: a node for each merged one, with the device's published times at the step's own size of micro-batches.
PlanGraph plan_graph(const Graph& step, const MergedNodes& merged, const DeviceModel& device);

// The same with the times that were measured of the program of `marked`, a step whose stages are merged nodes (mark_stages). Throws
// Error where costs lack a task.
PlanGraph measured_graph(const Graph& marked, const Costs& costs, const CostContext& context);

// Gives each node that keeps less for its backward if that computes it again this other way, with backwards that take the forward's time
// more; and, where it `swaps`, each whose backward is the first to read anything that forwards make the way in which that waits in the
// host's memory. `marked`: the step in micro-batches of a size of the graph's costs, whose stages are its nodes.
void add_lean_ways(PlanGraph& graph, bool swaps, const std::function<Graph(int size)>& marked);

// The same of the first of the devices over which `options` splits the step's tensors. `whole`: the graph of the step that is not split, at
// this size of micro-batches. Throws Error as member_inputs (lower/member_inputs.h).
PlanSplit split_graph(const Graph& step, const MergedNodes& merged, const DeviceModel& device, const CompileOptions& options,
                      const PlanGraph& whole);

// The step whose stages are merged nodes, on one device, one stage after the other: what they are measured with.
Program merged_program(const Graph& step);
// Seconds of each stage and kind that the program runs, with the filling of the inputs that it waits for. `seconds`: as durations_of says.
std::map<std::pair<std::int32_t, Kind>, double> action_seconds(const Program& program, const Durations& seconds);
// Seconds of what such a program runs after its loop: clipping and the optimiser's update. `seconds`: of each task.
double update_seconds(const Program& program, const std::vector<double>& seconds);
// Shares them among the nodes by the bytes of their parameters.
void share_update(PlanGraph& graph, double seconds);

// Which of the step's stages feed which, and what each has to do.
StageShape shape_of(const Graph& step);
// The table without backwards of stages that have none (an addition hands its gradient on).
Schedule without_missing(Schedule schedule, const StageShape& shape);

// A plan of merged nodes as one of the step's own nodes. Brings the plan's stages into the order in which compiling the step numbers them,
// and times it anew.
PlanFile plan_of_nodes(const Graph& step, const MergedNodes& merged, const PlanProblem& problem, Plan& plan);

// The step with the plan's stages as marks.
Graph mark_stages(const Graph& step, const PlanFile& plan);

}  // namespace penstock
