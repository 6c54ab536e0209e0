// SPDX-License-Identifier: Apache-2.0
// GraphPipe's formula for stages of any nodes, and small changes that make stages better by it.
#pragma once

#include "planners/graphpipe.h"
#include "planners/stage_line.h"

namespace penstock {

// The stages, in topological order, with what the formula counts in flight (`ahead`) where they feed each other as `shape` says. Its time
// is infinite where the costing has no such option for a stage.
GraphpipePlan by_formula(const PlanGraph& graph, const StageCosting& costing, std::vector<PlanStage> stages, const StageShape& shape);

// The best by the formula that small changes of the plan's stages have led to, which may be any stages: one may have nodes of several
// branches and share these with others.
GraphpipePlan improved_by_formula(const PlanProblem& problem, const StageCosting& costing, const Plan& plan, TimeLimit& limit);

}  // namespace penstock
