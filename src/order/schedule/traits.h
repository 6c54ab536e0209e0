// Traits of the schedules in the registry, by name. Throws Error for an unknown one.
#pragma once

#include <string_view>

namespace penstock {

// Its tables have I and W in place of B.
bool splits_backward(std::string_view schedule);
// Whether it takes an option, by its flag: "--unit".
bool takes(std::string_view schedule, std::string_view flag);

}  // namespace penstock
