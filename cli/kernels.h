// SPDX-License-Identifier: Apache-2.0
// Chooses the library that computes each matrix product of a command's programs.
#pragma once

#include "config/config.h"
#include "penstock/program.h"

namespace penstock {

// Chooses as config.run.kernels says. Call it on the controller, before anyone loads the program, so that the program's hash covers the
// choices.
void choose_kernels(const Config& config, Program& program);

// Floating-point operations that so many devices can do in a second, in the run's dtype, with a processor each as far as there are so many.
// Measures for some tens of milliseconds.
double peak_of(const Config& config, int devices);

}  // namespace penstock
