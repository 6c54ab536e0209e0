// SPDX-License-Identifier: Apache-2.0
// A table for stages that are each several of a model's.
#pragma once

#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// The table in which stage s is sizes[s] stages, one feeding the next, in the place of one: what goes forward, or is moved, gathered or
// computed again, does so in ascending order, what goes back, and the updates behind it, in descending order. Fused pairs come apart.
// Throws Error unless there is one size for each stage of the table, 1 or more, and where stages are no one chain: slices, parts of the
// vocabulary, generated stages without a backward.
Schedule with_finer_stages(Schedule schedule, const std::vector<int>& sizes);

}  // namespace penstock
