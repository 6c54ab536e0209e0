// SPDX-License-Identifier: Apache-2.0
// Chooses one way to run each of several nodes, so that all fit and the sum of costs is least (a multiple-choice knapsack).
#pragma once

#include <vector>

namespace penstock {

struct Way {
  double cost = 0, memory = 0;
};

struct CheapestWays {
  bool fits = false;
  bool exact = true;  // whether it is proven that nothing cheaper fits
  double cost = 0;
  std::vector<int> choices;  // by node: an index of its ways
};

// `nodes` have at least one way each. The result is exact as long as few sums of memory differ (equal layers); otherwise it is the best
// found from a thousand partial choices, and never worse than changing ways by the least cost for each byte saved, as Piper does.
CheapestWays cheapest_ways(const std::vector<std::vector<Way>>& nodes, double memory);

}  // namespace penstock
