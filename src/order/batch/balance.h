// SPDX-License-Identifier: Apache-2.0
// Divides numbers into bins of nearly equal sums: the micro-batches of the replicas of a pipeline (DynaPipe, 2311.10418).
#pragma once

#include <cstddef>
#include <vector>

namespace penstock {

// Indices of the values of each bin, by ascending sums. Karmarkar and Karp's largest differencing (1982) for several bins: the sums are
// near the best, not always the best. Values are not negative; there is at least one bin. O(n log n) for n values.
std::vector<std::vector<std::size_t>> balance(const std::vector<double>& values, std::size_t bins);

}  // namespace penstock
