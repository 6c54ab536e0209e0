// SPDX-License-Identifier: Apache-2.0
// Statistics of the lengths of a set's sequences.
#pragma once

#include <cstdint>
#include <vector>

namespace penstock {

// Statistics of lengths; all 0 where there are none. A percentile is the length at place floor(p (n-1) / 100) of the n sorted ones.
struct LengthStatistics {
  std::int64_t count = 0, total = 0;
  std::int64_t p10 = 0, p50 = 0, p90 = 0, p99 = 0, most = 0;
  double mean() const { return count == 0 ? 0 : static_cast<double>(total) / static_cast<double>(count); }
};
LengthStatistics statistics_of(std::vector<std::int64_t> lengths);

// Returns how many lengths are 0, 1, 2 to 3, 4 to 7, ...: entry k > 0 counts those from 2^(k-1) to 2^k - 1. No entry behind the last that
// counts any.
std::vector<std::int64_t> histogram_of(const std::vector<std::int64_t>& lengths);

}  // namespace penstock
