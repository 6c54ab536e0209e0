// HetPipe's waves (Park et al., 2005.14038, section 5): the devices of an actor are workers that update parameters of their own by their
// own gradients at once, and take each other's updates a wave at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "lower/window.h"

namespace penstock {

// The row of one device of a window's draft, whose updates are those of its worker alone (sums of gradients that update states are not
// reduced): behind the last update of wave c stand, for the states that a run updates,
//
//   delta   D[c] = W - what W was when the wave began
//   push    S[c] = all workers' D[c] summed
//   pull    of wave w = c - distance:  G = G + S[w],  W = G + D[w+1] + ... + D[c]
//
// and at the row's end the pulls that are left, so that all workers end with the same bits. G is what the server would have. Steps and
// versions (what a read of the table names) are those of the worker's own updates: the pull of wave w is part of its last update.
// `trained`: by state. Throws Error where a state that is trained is no parameter but a moment of the optimiser's, as updates are summed.
std::vector<PlacedRun> in_waves(const LowerInput& window, const IdVector<InputId, bool>& trained, std::vector<PlacedRun> row,
                                ActorId device, Draft& draft);

}  // namespace penstock
