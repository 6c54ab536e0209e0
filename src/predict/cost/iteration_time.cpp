#include "cost/iteration_time.h"

#include <algorithm>
#include <vector>

namespace penstock {

double longest_way(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample) {
  double longest = 0;
  std::vector<double> way(shape.predecessors.size());  // by stage: the longest way up to it, including it
  for (std::size_t s = 0; s < way.size(); ++s) {
    for (const std::int32_t before : shape.predecessors[s]) way[s] = std::max(way[s], way[before]);
    way[s] += sizes[s] * per_sample[s];
    longest = std::max(longest, way[s]);
  }
  return longest;
}

double iteration_time(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample, double samples,
                      double slowest) {
  return samples * slowest + longest_way(shape, sizes, per_sample);
}

}  // namespace penstock
