// SPDX-License-Identifier: Apache-2.0
// A training step planned among several sizes of micro-batches.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "penstock/costs.h"
#include "penstock/graph.h"
#include "penstock/plan.h"
#include "plan/planned_model.h"

namespace penstock {

// A step is planned for this.
struct StepPlanning {
  std::string name = {};  // what plans call the step
  ClusterSpec cluster = {};
  PlannerInfo planner = planners().front();
  PlanOptions options = {};
  bool any_parts = false;           // whether a run may cut the step into other numbers of micro-batches than the steps given
  bool replicas = true;             // whether a stage may run on several devices
  int nodes = 64;                   // at most so many are planned; of equal groups (degrees.h) kMostNodes
  std::string device = {};          // whose published figures time it, "": the cluster's own (figures_for),
  std::optional<Costs> costs = {};  // unless these were measured of planning_programs() of the same steps
};
inline constexpr int kMostNodes = 2000;

// The fastest plan of one training step, given in micro-batches of several sizes, among which the planner chooses. Planner best also looks
// for equal groups of devices, where times are published ones. Throws Error: as plan_step (penstock/plan_step.h); steps that differ in more
// than that size; costs that lack a task; where the fastest cannot be run.
PlannedModel plan_steps(const std::vector<Graph>& steps, const StepPlanning& planning);

// The programs, one for each step, that are measured for planning: a stage for each of at most `nodes` nodes, one after the other on one
// device.
std::vector<Program> planning_programs(const std::vector<Graph>& steps, int nodes = 64);

}  // namespace penstock
