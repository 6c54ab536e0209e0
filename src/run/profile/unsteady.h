// SPDX-License-Identifier: Apache-2.0
// Finds the measured times that are too uneven to predict with.
#pragma once

#include <string>
#include <vector>

#include "penstock/costs.h"

namespace penstock {

// The limit of the median distance from the median, divided by the median: beyond this a time says little. Tasks on an idle machine stay
// below 0.1.
inline constexpr double kMostSpread = 0.25;

struct UnsteadyTime {
  std::string task, where;  // where: "alone", "busy", or the backend in whose steps it ran
  Sample sample;
};
// Sorted with the worst first.
std::vector<UnsteadyTime> unsteady_times(const Costs& costs);

// A warning with the worst of them and advice; "" where there are none.
std::string unsteady_text(const std::vector<UnsteadyTime>& times);

}  // namespace penstock
