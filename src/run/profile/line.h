// SPDX-License-Identifier: Apache-2.0
// Fits a straight line through measured times.
#pragma once

#include <span>

namespace penstock {

// The line: seconds = fixed + bytes * per_byte.
struct Line {
  double fixed = 0, per_byte = 0;
};
struct MeasuredTime {
  double bytes, seconds;
};
// Fits by least squares of the relative errors, so that small messages count as much as large ones. Neither part is negative; if all sizes
// are equal, all is fixed.
Line fit(std::span<const MeasuredTime> times);
// In bytes per second; infinite where bytes cost nothing.
double bandwidth_of(const Line& line);

}  // namespace penstock
