// A table for a window of training steps (Schedule::steps). Each step is lowered as if it were alone, as far as its devices' runs; then
// their runs are put into each other in the order of the table, on one set of states, and a run reads the version of the parameters that
// the table says: the state itself while it has that version, else a copy made of it ahead of the update that writes it over.
#pragma once

#include <cstdint>
#include <vector>

#include "lower/draft.h"
#include "schedule/versions.h"

namespace penstock {

// A run on a device, of a step of the window.
struct PlacedRun {
  Run run;
  std::int32_t step = 0;
  ReadVersion read = {};  // of the trained states that it reads
  bool pulls = false;     // what it writes of these belongs to the version that they have
};

// The input of step `step` alone, of that of a whole window.
LowerInput step_input(const LowerInput& window, std::int32_t step);
struct JoinedSteps {
  LowerInput input;  // of the passes that follow: the window's micro-batches, ports and outputs ("loss.0", "loss.1", ...)
  Draft draft;
};
// The steps' drafts after the pass `devices` as one. Data that are read by micro-batch are a port for all steps; what a step reads whole is
// a port for each, NAME.0, NAME.1, .... Throws Error where a state that is updated is read on several actors, or before its version is
// there.
JoinedSteps join_steps(const LowerInput& window, const std::vector<Draft>& drafts);

}  // namespace penstock
