// Which of the times that were measured are too uneven to predict with.
#pragma once

#include <string>
#include <vector>

#include "simulate/costs.h"

namespace penstock {

// The median distance from the median, over it: beyond this a time says little. Tasks of an idle machine stay below 0.1.
inline constexpr double kMostSpread = 0.25;

struct UnsteadyTime {
  std::string task, where;  // "alone", "busy", or the backend in whose steps it ran
  Sample sample;
};
// The worst first.
std::vector<UnsteadyTime> unsteady_times(const Costs& costs);

// A warning with the worst of them and what helps; "" where there are none.
std::string unsteady_text(const std::vector<UnsteadyTime>& times);

}  // namespace penstock
