// SPDX-License-Identifier: Apache-2.0
#include "data/length_statistics.h"

#include <algorithm>
#include <bit>
#include <numeric>

namespace penstock {

LengthStatistics statistics_of(std::vector<std::int64_t> lengths) {
  if (lengths.empty()) return {};
  std::ranges::sort(lengths);
  const auto percentile = [&](std::size_t p) { return lengths[p * (lengths.size() - 1) / 100]; };
  return {std::ssize(lengths), std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}),
          percentile(10),      percentile(50),
          percentile(90),      percentile(99),
          lengths.back()};
}

std::vector<std::int64_t> histogram_of(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> out;
  for (const std::int64_t length : lengths) {
    const auto entry = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(length)));
    if (out.size() <= entry) out.resize(entry + 1);
    ++out[entry];
  }
  return out;
}

}  // namespace penstock
