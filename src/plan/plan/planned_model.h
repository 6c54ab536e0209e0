// SPDX-License-Identifier: Apache-2.0
// Plans of a training step that may be cut into micro-batches of several sizes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/plan.h"
#include "penstock/plan_file.h"
#include "penstock/program.h"
#include "plan/merged_nodes.h"

namespace penstock {

// A whole batch's training step in micro-batches of `size` samples.
using StepOfSize = std::function<Graph(int size)>;

// The program of a run of the plan; none where nothing says it.
using ProgramOfPlan = std::function<std::optional<Program>(const PlanFile& plan)>;

// The step's merged nodes as a graph with costs, and what they are planned for.
struct MergedProblem {
  MergedNodes merged;
  PlanProblem problem;
  // In how many parts a run may cut the step, each of which one device runs of a stage; empty: in any number.
  std::vector<int> parts = {};
  ProgramOfPlan program = {};
};

// A plan, and what it is the answer to.
struct PlannedModel {
  PlanProblem problem;
  Plan plan;
  PlanFile file;
  std::string cannot_run = {};  // why no run can have it; else empty
  bool is_compiled = false;     // whether peak_bytes are those of its program; else they are what the planner counts, which is less
};
inline constexpr const char* kNotByBlock = "no schedule gathers parameters block by block";

// The graph for planning, of the steps of these sizes, with the costs that `graph_of` gives each. Throws Error where their nodes differ.
PlanGraph graph_of_sizes(const StepOfSize& step, const std::vector<int>& sizes, const std::function<PlanGraph(const Graph&)>& graph_of);

// One planner's plan, with the step's own nodes in place of merged ones. Where the stages' devices cannot share any of the numbers of
// parts, it is planned with one device for each stage. Where the devices' memory is limited and the problem has a program, the program
// keeps to it (fitting_plan.cpp).
PlannedModel planned_model(const StepOfSize& step, const MergedProblem& of, const PlannerInfo& planner, const PlanOptions& options);

// The best first: what can be run before what cannot. `equal`: where it is given, equal groups that can be run are looked for too, in this
// problem and with half of the time. Throws Error where there is no plan.
std::vector<PlannedModel> planned_models(const StepOfSize& step, const MergedProblem& own, const std::optional<MergedProblem>& equal,
                                         const PlannerInfo& planner, PlanOptions options);

}  // namespace penstock
