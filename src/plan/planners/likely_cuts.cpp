// SPDX-License-Identifier: Apache-2.0
#include "planners/likely_cuts.h"

#include <algorithm>
#include <cmath>

#include "base/numbers.h"

namespace penstock {

std::vector<int> possible_cuts(const CutCosts& costs, int devices, double bound) {
  const double all = costs.work.back(), slack = 1e-9 * all;
  std::vector<int> out;
  for (std::size_t set = 0; set < costs.work.size(); ++set) {
    const double before = costs.work[set] - slack;
    const double used = before > 0 ? std::ceil(before / bound) : 0;
    if (used <= devices && all - costs.work[set] - slack <= (devices - used) * bound) out.push_back(static_cast<int>(set));
  }
  return out;
}

std::vector<int> spread_cuts(const CutCosts& costs, std::vector<int> sets, int most) {
  if (static_cast<int>(sets.size()) <= most) return sets;
  const int last = static_cast<int>(costs.work.size()) - 1, parts = (most - 2) / 2;
  std::sort(sets.begin(), sets.end(), [&](int a, int b) { return costs.work[a] < costs.work[b]; });
  // A stretch of work without any set counts as one part at most.
  std::vector<double> places = {0};
  for (std::size_t i = 1; i < sets.size(); ++i)
    places.push_back(places.back() + std::min(costs.work[sets[i]] - costs.work[sets[i - 1]], costs.work.back() / parts));
  const auto part_of = [&](std::size_t i) {
    return places.back() > 0 ? std::min(static_cast<int>(places[i] / places.back() * parts), parts - 1) : 0;
  };
  std::vector<int> out = {0, last};
  for (std::size_t begin = 0, end = 0; begin < sets.size(); begin = end) {
    while (end < sets.size() && part_of(end) == part_of(begin)) ++end;
    const auto first = sets.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto taken = std::min<std::ptrdiff_t>(2, static_cast<std::ptrdiff_t>(end - begin));
    std::partial_sort(first, first + taken, sets.begin() + static_cast<std::ptrdiff_t>(end),
                      [&](int a, int b) { return std::pair(costs.cut[a], a) < std::pair(costs.cut[b], b); });
    out.insert(out.end(), first, first + taken);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace penstock
