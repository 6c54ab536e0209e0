// SPDX-License-Identifier: Apache-2.0
// A micro-batch's time, or memory, as a sum over its load: fitted to some loads, known for all.
#pragma once

#include <array>
#include <vector>

#include "batch/lengths.h"

namespace penstock {

// The amounts that work and memory are linear in: one, rows, input tokens, their squares, target tokens, their squares, products.
using LoadAmounts = std::array<double, 7>;
LoadAmounts amounts_of(const BatchLoad& load);

// The share that each amount adds.
struct LoadFit {
  LoadAmounts per_amount{};

  double operator()(const BatchLoad& load) const;
};

struct LoadPoint {
  BatchLoad load;
  double value = 0;
};
// The least sum of squared relative errors with which no amount subtracts anything (so that what lies outside of the points is never
// negative). Points of no value, and amounts that are 0 in all points, do not count.
LoadFit fit_loads(const std::vector<LoadPoint>& points);

}  // namespace penstock
