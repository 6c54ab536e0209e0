// SPDX-License-Identifier: Apache-2.0
#include "simulate/sort_activities.h"

#include <algorithm>
#include <numeric>

namespace penstock {

void sort_by_begin(std::vector<Activity>& activities) {
  std::vector<std::int64_t> order(activities.size()), place(activities.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) { return activities[a].begin < activities[b].begin; });
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = static_cast<std::int64_t>(i);
  std::vector<Activity> sorted;
  sorted.reserve(order.size());
  for (const std::int64_t number : order) {
    sorted.push_back(activities[number]);
    if (std::int64_t& cause = sorted.back().cause; cause >= 0) cause = place[cause];
  }
  activities = std::move(sorted);
}

}  // namespace penstock
