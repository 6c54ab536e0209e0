// SPDX-License-Identifier: Apache-2.0
// Reads the outputs of a step.
#pragma once

#include <string>
#include <vector>

#include "devices/cluster.h"

namespace penstock {

// The values of output `name` of `program`, widened to f64. The program must have it (an invariant).
std::vector<double> output_values(const Program& program, const StepResult& result, const std::string& name);
double scalar_output(const Program& program, const StepResult& result, const std::string& name);

}  // namespace penstock
