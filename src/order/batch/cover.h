// SPDX-License-Identifier: Apache-2.0
// Least weighted covers: how much of each of several things is given up, so that every set of them that live together keeps its room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace penstock {

struct CoverEntry {
  int most = 0;     // units that it may give up
  double cost = 1;  // of each
};

// Entries, with what a unit of each saves here, and how much all have to save.
struct CoverSet {
  std::vector<std::size_t> entries;
  std::vector<double> saved;
  double over = 0;

  auto operator<=>(const CoverSet&) const = default;
};

struct Cover {
  bool feasible = false;
  double cost = 0;
  std::vector<int> units;  // by entry
  bool proven = false;     // no cover costs less
};

// The cheapest cover, by branch and bound over at most so many nodes; beyond them the best so far counts. Costs are positive.
Cover least_cover(std::vector<CoverSet> sets, const std::vector<CoverEntry>& entries, std::int64_t nodes);

}  // namespace penstock
