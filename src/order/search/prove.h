// SPDX-License-Identifier: Apache-2.0
// Branch and bound over the orders of all rows.
#pragma once

#include <cstdint>
#include <functional>

#include "search/bound.h"
#include "search/legs.h"

namespace penstock {

struct Proof {
  Rows rows;              // faster than what was to be beaten; empty: none found
  double makespan = 0;    // of rows
  bool complete = false;  // every order was looked at or excluded: nothing is faster than `rows`, or than what was to be beaten
  std::int64_t nodes = 0;
};
// Looks for rows that take less than `beat`. Each node extends the row of the actor that is free first by each step that may be next;
// a step whose needs have not run yet is decided and waited for. A node ends where
// - the heads and tails of what is left reach `beat` on some actor (one_machine_bound),
// - the step leaves a gap in which another one of the actor could have run without delaying anything, or
// - the same steps had been run before, none of them later.
// Takes links that are not shared by several actors. Ends after `nodes` or when is_late().
Proof prove(const Legs& legs, const HeadsAndTails& ends, double beat, std::int64_t nodes, const std::function<bool()>& is_late);

}  // namespace penstock
