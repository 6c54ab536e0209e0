// Updates made ahead of the norm that they are clipped by, where they cannot be.
#pragma once

#include <functional>

#include "penstock/graph.h"

namespace penstock {

// Makes each update_ahead for which `early` is false, with the update_validated that reads it, one update by the clipped gradient: the same
// bits. Values that nothing defines any more stay in graph.values.
void update_ahead_only_where(Graph& graph, const std::function<bool(const Op& ahead)>& early);

}  // namespace penstock
