// SPDX-License-Identifier: Apache-2.0
// Planners that take micro-batches of one size (PlannerInfo::smallest_size), asked for others.
#pragma once

#include "penstock/plan.h"

namespace penstock {

// The problem with costs of micro-batches of this size alone, by those that were measured.
PlanProblem at_size(const PlanProblem& problem, int size);
// A plan of at_size(problem, ...) as one of the problem, whose stages say their size.
void take_over(const PlanProblem& problem, const PlanProblem& one_size, Plan& plan);

// The fastest of the planner's plans, asked once for each size that the problem allows. Throws what the planner throws where it has none.
Plan plan_at_sizes(const PlannerInfo& planner, const PlanProblem& problem, const PlanOptions& options);

// Whether all stages take micro-batches of the sizes that the problem allows.
bool has_allowed_sizes(const PlanProblem& problem, const Plan& plan);

}  // namespace penstock
