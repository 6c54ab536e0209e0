// SPDX-License-Identifier: Apache-2.0
// Tables of segments by priorities.
#pragma once

#include <cstddef>
#include <vector>

#include "batch/module_jobs.h"

namespace penstock {

// Where something would end first, and the segments whose next step could run there before that. One of them, or a W that waits there, must
// run next (Giffler and Thompson 1960). Of equal parts that wait for the same there is one.
struct ModuleConflict {
  std::size_t rank = 0;
  std::vector<std::size_t> segments;
};
ModuleConflict conflict_of(const ModuleJobs& jobs, const ModuleState& state);

// Each conflict is settled by what stands first in `order`, which has each segment's forward (its number), backward (its number and all
// segments) and, where backwards are split, W (its number and all segments twice). The makespan is infinite where it stalls.
ModuleTable list_modules(const ModuleJobs& jobs, const std::vector<std::size_t>& order);

// The order of all forwards and backwards by when the table, of whole backwards, begins them, over all ranks; W behind them.
std::vector<std::size_t> order_in(const ModuleJobs& jobs, const ModuleTable& table);

}  // namespace penstock
