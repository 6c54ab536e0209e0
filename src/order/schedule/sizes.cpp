// SPDX-License-Identifier: Apache-2.0
#include "schedule/sizes.h"

#include <algorithm>
#include <numeric>

namespace penstock {

std::vector<std::int32_t> sizes_together(const Schedule& schedule) {
  std::vector<std::int32_t> sizes(schedule.stages(), 0);  // 0: of no action yet
  if (schedule.slices > 1 || schedule.steps > 1) return std::vector<std::int32_t>(sizes.size(), 1);
  for (const auto& row : schedule.actors)
    for (const Action& action : row) {
      if (action.microbatch < 0) continue;
      std::int32_t& size = sizes[action.stage];
      const bool is_alike = (size == 0 || size == action.count) && action.microbatch % action.count == 0;
      size = is_alike ? action.count : 1;
    }
  for (std::int32_t& size : sizes) size = std::max(size, 1);
  return sizes;
}

std::int32_t micro_batches_together(const Schedule& schedule) {
  const std::vector<std::int32_t> sizes = sizes_together(schedule);
  return std::accumulate(sizes.begin(), sizes.end(), 1, [](std::int32_t a, std::int32_t b) { return std::lcm(a, b); });
}

}  // namespace penstock
