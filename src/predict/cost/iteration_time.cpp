// SPDX-License-Identifier: Apache-2.0
#include "cost/iteration_time.h"

#include <algorithm>
#include <vector>

namespace penstock {

double longest_path(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample) {
  double longest = 0;
  std::vector<double> path(shape.predecessors.size());  // by stage: the longest path up to it, including it
  for (std::size_t s = 0; s < path.size(); ++s) {
    for (const std::int32_t before : shape.predecessors[s]) path[s] = std::max(path[s], path[before]);
    path[s] += sizes[s] * per_sample[s];
    longest = std::max(longest, path[s]);
  }
  return longest;
}

double iteration_time(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample, double samples,
                      double slowest) {
  return samples * slowest + longest_path(shape, sizes, per_sample);
}

}  // namespace penstock
