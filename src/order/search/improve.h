// SPDX-License-Identifier: Apache-2.0
// Makes rows faster by moving their steps.
#pragma once

#include <functional>
#include <random>

#include "search/legs.h"

namespace penstock {

struct Improved {
  Rows rows;
  double makespan;
};
// By late acceptance: steps of the longest path through the rows, and now and then any others, move within
// their row as far as what they need and the memory limit allow; where a forward no longer fits, the next W moves before it. Ends after
// `moves`, at the bound, or when is_late().
Improved improve(const Legs& legs, const Rows& rows, std::int64_t moves, double bound, std::mt19937_64& random,
                 const std::function<bool()>& is_late);

}  // namespace penstock
