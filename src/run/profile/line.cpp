// SPDX-License-Identifier: Apache-2.0
#include "profile/line.h"

#include <algorithm>
#include <limits>

namespace penstock {

Line fit(std::span<const MeasuredTime> times) {
  double w = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (const MeasuredTime& time : times) {
    const double seconds = std::max(time.seconds, 1e-9), weight = 1 / (seconds * seconds);
    w += weight;
    x += weight * time.bytes;
    y += weight * seconds;
    xx += weight * time.bytes * time.bytes;
    xy += weight * time.bytes * seconds;
  }
  Line line;
  const double spread = w * xx - x * x;
  if (spread > 1e-9 * w * xx) line.per_byte = std::max(0.0, (w * xy - x * y) / spread);
  if (w > 0) line.fixed = std::max(0.0, (y - line.per_byte * x) / w);
  return line;
}

double bandwidth_of(const Line& line) {
  return line.per_byte > 0 ? 1 / line.per_byte : std::numeric_limits<double>::infinity();
}

}  // namespace penstock
