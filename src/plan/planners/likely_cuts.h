// SPDX-License-Identifier: Apache-2.0
// Chooses among more downsets than can be looked at in pairs those at which a good plan's stages begin and end.
#pragma once

#include <span>
#include <vector>

#include "planners/downsets.h"

namespace penstock {

// By downset: the summed work of its nodes, and what leaves it.
struct CutCosts {
  std::vector<double> work, cut;
};

// The downsets that may be a cut of a plan in which no device has more than `bound` of work: the work before the cut and that behind it
// must each fit on whole devices. Ascending.
std::vector<int> possible_cuts(const CutCosts& costs, int devices, double bound);

// At most `most` of these sets, with the first and the last: the range of work that they cover is divided into even parts, and from each
// part the two sets are taken that least leaves. Ascending.
std::vector<int> spread_cuts(const CutCosts& costs, std::vector<int> sets, int most);

// Calls `solve` with some of the downsets: first with few, then with more of those that may be a cut of a plan as good as the one that was
// found. It returns the value of the best plan on so many devices whose stages lie between these sets. Returns true where the last call had
// all of them, so that no plan is better.
template <class Solve>
bool search_cuts(const Downsets& all, const CutCosts& costs, int devices, Solve&& solve) {
  constexpr int kMostPaired = 8'000;
  std::vector<int> sets = all.all();
  for (const int most : {3'000, 5'000, 8'000}) {
    const bool every = static_cast<int>(sets.size()) <= (all.count() <= kMostDownsets ? kMostDownsets : kMostPaired);
    const double value = solve(all.only(every ? sets : spread_cuts(costs, sets, most)));
    if (every) return all.complete();
    sets = possible_cuts(costs, devices, value);
  }
  return false;
}

}  // namespace penstock
