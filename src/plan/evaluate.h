// What a plan comes to: its step under the table simulator.
#pragma once

#include "penstock/plan.h"

namespace penstock {

// Fills schedule, predicted_time and peak_bytes of a plan that check_plan accepts. A stage is an actor; its replicas share every
// micro-batch and sum their gradients once after their last backward. The order is GraphPipe's (each stage as far ahead as the longest way
// to the end needs), with as many fewer in flight as the devices' memory asks for. False: one micro-batch at a time does not fit either
// (peak_bytes says what it needs). Linear in micro-batches times stages.
bool evaluate(const PlanProblem& problem, Plan& plan);

// Samples of a step, and of the stages' micro-batches where they do not say.
int step_samples(const PlanProblem& problem);

}  // namespace penstock
