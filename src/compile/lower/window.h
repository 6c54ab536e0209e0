// SPDX-License-Identifier: Apache-2.0
// A table for a window of training steps (Schedule::steps). Each step is lowered as if it were alone, as far as its devices' runs; then the
// pass `steps` puts their runs into each other in the order of the table, on one set of states, and the pass `versions` has a run read the
// version of the parameters that the table says. Members of the mesh's axes become one draft behind that, so both passes know nothing of
// axes. From ZeRO's level 2 on each step's own table gets its gathers and reductions before it is lowered.
//
// An I or W may be on another actor than its stage's owner. The sum that W leaves is then the owner's (PartialSum::actor), who reads it
// from there where its U stands, and the U needs the W as any action needs another (schedule/work.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lower/draft.h"

namespace penstock {

inline bool is_window(const LowerInput& input) {
  return input.schedule.steps > 1;
}

// Returns the input of step `step` alone, of that of a whole window.
LowerInput step_input(const LowerInput& window, std::int32_t step);
// Returns the input of the passes behind `steps`: the window's micro-batches, ports and outputs ("loss.0", "loss.1", ...). `whole_ports`:
// the draft's. Data that are read by micro-batch are a port for all steps; what a step reads whole is a port for each, NAME.0, NAME.1, ....
LowerInput window_input(const LowerInput& window, const std::vector<std::int32_t>& whole_ports);

// Returns the states whose next values depend on the loop's results. Those of all others (how many steps there were) can be made ahead, or
// are what they were (frozen parameters).
IdVector<InputId, bool> trained_states(const LowerInput& input);
// Throws Error unless updates may wait for other actors. `what`: does, as the error's second line.
void check_window_drained(const LowerInput& window, const std::string& what);
// Returns the loop's operand that is this port, cut into micro-batches; -1: none is.
std::int32_t cut_operand(const LowerInput& input, InputId port);

}  // namespace penstock
