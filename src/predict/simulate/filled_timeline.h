// SPDX-License-Identifier: Apache-2.0
// Steps whose idle time has frozen layers, as timelines.
#pragma once

#include <string>

#include "simulate/fill_idle.h"

namespace penstock {

// "z0.3", layer 3 of chain 0, or "z0.3*3/8", three eighths of its batch.
std::string name_of(const FrozenPiece& piece, int parts);

// The step with its fill: each piece is an activity of each of its devices, whose task has the piece's name. Without `behind`, only what is
// in idle intervals.
Timeline with_frozen(const Timeline& step, const FrozenFill& fill, bool behind = true);

// `steps` steps, 1 or more: the first step's frozen layers ahead of all on all devices, then each step with the next one's, which may
// end behind it. The last has no next one's. Where all fits inside, it takes work / devices + steps times the step's own time.
Timeline filled_steps(const Timeline& step, const std::vector<FrozenChain>& chains, const FrozenFill& fill, int steps);

}  // namespace penstock
