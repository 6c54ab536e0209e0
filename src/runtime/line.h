// A straight line through measured times.
#pragma once

#include <span>

namespace penstock {

// seconds = fixed + bytes * per_byte.
struct Line {
  double fixed = 0, per_byte = 0;
};
struct MeasuredTime {
  double bytes, seconds;
};
// By least squares of the relative errors: small messages count as much as large ones. Neither part is negative; of one size, all is fixed.
Line fit(std::span<const MeasuredTime> times);

}  // namespace penstock
