// SPDX-License-Identifier: Apache-2.0
// A step graph planned as it is: its nodes with published times, a planner, and the step with the plan's stages and table.
#pragma once

#include <string>

#include "penstock/graph.h"
#include "penstock/plan.h"
#include "penstock/plan_file.h"

namespace penstock {

// The result of plan_step().
struct PlannedStep {
  Graph step;         // with the plan's stages as marks: for compile()
  Schedule schedule;  // of these stages, without actors that have nothing to do
  PlanFile plan;      // with the times that are predicted
};
// The step in stages for the cluster, each on one device. Its micro-batches stay as they are, so the planner chooses stages, devices and
// order. device: whose published figures time it; "": the cluster's own (figures_for). Throws Error: what the planner throws, and an
// unknown device.
PlannedStep plan_step(const Graph& step, const ClusterSpec& cluster, const PlannerInfo& planner, const std::string& device = {},
                      const PlanOptions& options = {}, int most_nodes = 64);

}  // namespace penstock
