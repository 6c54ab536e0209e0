// The planners, one per file; planners.cpp has their names.
#pragma once

#include "penstock/plan.h"

namespace penstock {

Plan plan_by_pipedream(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_piper(const PlanProblem& problem, const PlanOptions& options);
Plan plan_by_max_load(const PlanProblem& problem, const PlanOptions& options);

}  // namespace penstock
