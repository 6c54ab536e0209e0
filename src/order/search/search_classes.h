// SPDX-License-Identifier: Apache-2.0
// The search where micro-batches differ in what they cost (TableCosts::first).
#pragma once

#include "penstock/search.h"

namespace penstock {

// The fastest of list schedules in many orders of injection, of the options' given tables, and of what moving their actions makes of the
// best, the fastest that keeps the memory limit: never slower than a given one that keeps it. Where the problem allows recomputation,
// tables that hold too much are relieved (relieve.h). Throws Error as search_schedule does.
SearchResult search_classes(const SearchProblem& problem, const SearchOptions& options);

// Every actor works for at least so long, before that waits for the first micro-batch and after it for the last to come back.
double work_bound(const SearchProblem& problem);

}  // namespace penstock
