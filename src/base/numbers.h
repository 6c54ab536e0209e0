// SPDX-License-Identifier: Apache-2.0
// Short names for conversions that searches and simulations write often.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace penstock {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kMillisecond = 1e-3;  // in seconds

// n as an index; n >= 0.
constexpr std::size_t at(std::int64_t n) {
  return static_cast<std::size_t>(n);
}

}  // namespace penstock
