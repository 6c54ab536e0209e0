// SPDX-License-Identifier: Apache-2.0
// Updates made ahead of the norm that clips them. Such an update is two ops (ops/optimiser.h), neither of which needs control flow in the
// program: update_ahead, at the stage's U, writes over the state and gives the values from before; update_validated, after the loop,
// leaves the state or makes the update anew, in the same place. Where nothing can be gained by that, both become one update here.
#pragma once

#include <functional>

#include "penstock/graph.h"

namespace penstock {

// Makes each update_ahead for which `early` is false, with the update_validated that reads it, one update by the clipped gradient: the same
// bits. Values that nothing defines any more stay in graph.values.
void update_ahead_only_where(Graph& graph, const std::function<bool(const Op& ahead)>& early);

}  // namespace penstock
