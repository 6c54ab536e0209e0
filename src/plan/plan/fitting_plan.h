// SPDX-License-Identifier: Apache-2.0
// A plan within the memory of its devices, as a run of it takes that.
#pragma once

#include "plan/planned_model.h"

namespace penstock {

// planned_model() with the memory that the planner counts: that of its nodes. A program also holds what kernels need for themselves, copies
// and sums that lie beside, and gaps between tensors.
PlannedModel counted_model(const StepOfSize& step, const MergedProblem& of, const PlannerInfo& planner, const PlanOptions& options);

}  // namespace penstock
