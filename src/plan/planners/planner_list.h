// SPDX-License-Identifier: Apache-2.0
// The list of planners, one per file; planners.cpp has their names.
#pragma once

#include "penstock/plan.h"

namespace penstock {

Plan plan_by_best(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_exact(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_graphpipe(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_pipedream(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_piper(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_max_load(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_dapple(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_spp(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_bapipe(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_hetpipe(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_dawnpiper(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_degrees(const PlanProblem& problem, const PlanOptions& options);

// The planner of equal groups.
const PlannerInfo& groups_planner();

// For equal groups that a run can have, within so many seconds: no schedule gathers parameters block by block.
PlanOptions runnable_groups(PlanOptions options, double seconds);

// Throws Error unless a planner can begin: nodes with costs in topological order, sizes of micro-batches that divide the step, and
// devices whose speeds and memories are positive.
void check_problem(const PlanProblem& problem);

}  // namespace penstock
