// SPDX-License-Identifier: Apache-2.0
// Divides a sorted list of lengths into contiguous parts: micro-batches of like token sums, and buckets of little padding (FlexSP,
// 2412.01523, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

// Where each of `parts` parts begins, none of them empty, so that the largest sum is least. Takes at least as many lengths as parts.
std::vector<std::size_t> divide_by_sum(const std::vector<std::int64_t>& lengths, std::size_t parts);

struct Buckets {
  std::vector<std::int64_t> bounds;  // the longest of each bucket, ascending
  std::int64_t error = 0;            // tokens that padding to the bounds adds
};
// At most `count` buckets of ascending lengths with the least padding. n lengths: O(count n^2).
Buckets bucket_lengths(const std::vector<std::int64_t>& ascending, std::size_t count);

}  // namespace penstock
