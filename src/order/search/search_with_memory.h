// SPDX-License-Identifier: Apache-2.0
// The search where tables do more for memory than to choose an order: recompute, offload, or shard parameters.
#pragma once

#include <functional>
#include <random>

#include "penstock/search.h"

namespace penstock {

// Whether memory is more than activations that live from F to the backward.
bool counts_memory(const SearchProblem& problem);
SearchResult search_with_memory(const SearchProblem& problem, const SearchOptions& options);

// Improves a table as improve.h does, over whole tables: actions move within their row, R comes and goes, and so does
// offloading, where each is allowed; collectives follow (with_gathers). Of a table within the limit; returns one that is no slower. Ends
// after `moves` or when is_late().
Schedule improve_table(const SearchProblem& problem, const Schedule& schedule, std::int64_t moves, std::mt19937_64& random,
                       const std::function<bool()>& is_late);

}  // namespace penstock
