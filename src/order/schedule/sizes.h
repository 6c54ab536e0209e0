// SPDX-License-Identifier: Apache-2.0
// Stages that take several micro-batches together.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// Returns for each stage how many micro-batches every one of its actions takes together; 1 where they take different numbers or do not
// begin at multiples of it, and in tables of slices or of several steps.
std::vector<std::int32_t> sizes_together(const Schedule& schedule);
// Returns the least number of the table's micro-batches of which every stage takes a whole part together: the size of a micro-batch of the
// step that is compiled for it.
std::int32_t micro_batches_together(const Schedule& schedule);

}  // namespace penstock
