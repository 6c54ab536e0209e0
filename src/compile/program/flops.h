// SPDX-License-Identifier: Apache-2.0
// The floating-point operations of a step.
#pragma once

#include "penstock/program.h"

namespace penstock {

// The operations of all runs of all devices, by what ops say that they take; what is recomputed counts twice.
double step_flops(const Program& program);
double task_flops(const Task& task);  // of one run

}  // namespace penstock
