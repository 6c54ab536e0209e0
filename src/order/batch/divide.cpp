// SPDX-License-Identifier: Apache-2.0
#include "batch/divide.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/invariant.h"

namespace penstock {
namespace {

// Fills part after part up to the limit, which is at least the longest length.
std::vector<std::size_t> fill_parts(const std::vector<std::int64_t>& lengths, std::size_t parts, std::int64_t limit) {
  std::vector<std::size_t> begins;
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const bool rest_is_one_each = lengths.size() - i <= parts - std::min(parts, begins.size());
    if (i == 0 || rest_is_one_each || sum + lengths[i] > limit) {
      begins.push_back(i);
      sum = 0;
    }
    sum += lengths[i];
  }
  return begins;
}

}  // namespace

std::vector<std::size_t> divide_by_sum(const std::vector<std::int64_t>& lengths, std::size_t parts) {
  invariant(parts > 0 && parts <= lengths.size(), "no part is empty");
  std::int64_t low = *std::max_element(lengths.begin(), lengths.end());
  std::int64_t high = std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
  while (low < high) {
    const std::int64_t middle = low + (high - low) / 2;
    if (fill_parts(lengths, parts, middle).size() <= parts) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return fill_parts(lengths, parts, low);
}

Buckets bucket_lengths(const std::vector<std::int64_t>& ascending, std::size_t count) {
  constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  const std::size_t n = ascending.size();
  std::vector<std::int64_t> sums(n + 1, 0);
  for (std::size_t i = 0; i < n; ++i) sums[i + 1] = sums[i] + ascending[i];
  // least[k][j]: the padding of the first j lengths in k buckets, of which the last begins at from[k][j].
  count = std::min(count, n);
  std::vector<std::vector<std::int64_t>> least(count + 1, std::vector<std::int64_t>(n + 1, kNone));
  std::vector<std::vector<std::size_t>> from(count + 1, std::vector<std::size_t>(n + 1, 0));
  least[0][0] = 0;
  for (std::size_t k = 1; k <= count; ++k) {
    for (std::size_t j = k; j <= n; ++j) {
      for (std::size_t i = k - 1; i < j; ++i) {
        if (least[k - 1][i] == kNone) continue;
        const std::int64_t padding = least[k - 1][i] + ascending[j - 1] * static_cast<std::int64_t>(j - i) - (sums[j] - sums[i]);
        if (padding >= least[k][j]) continue;
        least[k][j] = padding;
        from[k][j] = i;
      }
    }
  }
  Buckets out{.bounds = {}, .error = least[count][n]};
  for (std::size_t k = count, j = n; k > 0; j = from[k--][j]) out.bounds.insert(out.bounds.begin(), ascending[j - 1]);
  return out;
}

}  // namespace penstock
