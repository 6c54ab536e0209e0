// SPDX-License-Identifier: Apache-2.0
// Costs that only whole steps can tell.
#pragma once

#include <span>
#include <string>

#include "penstock/costs.h"
#include "penstock/program.h"

namespace penstock {

// A program whose steps were measured, and the seconds that one took, the median.
struct MeasuredStep {
  const Program* program;
  double seconds;
};

// Lengthens or shortens each step of a collective's ring, of all kinds by the same time, so that the predicted steps take as long as the
// measured ones: the sum of the logarithms of their ratios becomes 0, or as near to it as latencies of 0 or more let it come. Members that
// do the same are late in turn, each time all others wait, and library threads take the cores of members that compute: mean times of single
// collectives have too little of the one, and those for which somebody waited are the longer ones. Programs without collectives are left
// out. `costs` has all else of this backend.
void fit_collectives(std::span<const MeasuredStep> steps, const std::string& backend, Costs& costs);

}  // namespace penstock
