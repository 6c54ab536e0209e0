// Places every slot and every task's temporaries.
#pragma once

#include "program/program.h"

namespace penstock {

// Sets Slot::offset and the devices' arena sizes. State slots get fixed places; step and host slots are placed by lifetime (from
// defining instruction to free, in program order; placement.h says how well). Sets Task::scratch by plan_scratch, and
// scratch_bytes to the largest that the device runs.
void plan_memory(Program& program);
// Whether any slot has a place, or there is none: verify() has found then that all have. What has no plan can be verified and simulated,
// not run.
bool has_memory_plan(const Program& program);

// Places of a task's temporaries, each from its op to its last reader. Views share their base's storage (a reshape of what is not
// dense has its own: it copies); an elementwise op writes over an operand that dies there. Outputs are written into their slots; an
// output that is a view of a temporary is copied at the end. An upper bound of what a kernel-by-kernel executor needs, exact for
// one without fusion.
struct ScratchPlan {
  std::vector<std::int64_t> offsets;  // of each value; -1: input, output or view (no storage of its own)
  std::vector<bool> views;            // of each value: it lies where another does, which lives as long as is needed for that
  std::int64_t bytes = 0;
};
ScratchPlan plan_scratch(const Graph& graph);

}  // namespace penstock
