// SPDX-License-Identifier: Apache-2.0
// The search where the table may say when transfers start (SearchProblem::order_transfers), as CrossPipe's does (2507.00217).
#pragma once

#include "penstock/search.h"

namespace penstock {

// The result of the search without, or what moving sends along their rows, among all else in them, makes of its tables, where that is
// faster. Throws Error for a table of several steps.
SearchResult search_with_transfers(const SearchProblem& problem, const SearchOptions& options);

}  // namespace penstock
