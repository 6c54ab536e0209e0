// One way to run each of several nodes, so that all fit and cost least (a multiple-choice knapsack).
#pragma once

#include <vector>

namespace penstock {

struct Way {
  double cost = 0, memory = 0;
};

struct CheapestWays {
  bool fits = false;
  bool exact = true;  // nothing cheaper fits
  double cost = 0;
  std::vector<int> choices;  // of each node: an index of its ways
};

// `nodes`: at least one way each. Exact as long as few sums of memory differ (equal layers), else from the best thousand partial choices,
// and never worse than changing ways by the least cost for each byte saved, as Piper does.
CheapestWays cheapest_ways(const std::vector<std::vector<Way>>& nodes, double memory);

}  // namespace penstock
