// SPDX-License-Identifier: Apache-2.0
// Residuals as rules want them, once the order of a row is known.
#pragma once

#include <vector>

#include "penstock/rules.h"

namespace penstock {

// The row of actor known.r with R, OFFLOAD and RELOAD as rules.recompute and rules.offload say. It has F, B, I and W, each of one
// micro-batch, of a table of so many slices. n actions: O(n log n). Throws Error where an expression has no value.
std::vector<Action> with_residuals(const std::vector<Action>& row, const Rules& rules, const Variables& known, std::int32_t slices);

}  // namespace penstock
