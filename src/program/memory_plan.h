// Places every slot and every task's temporaries.
#pragma once

#include "program/program.h"

namespace penstock {

// Sets Slot::offset and the devices' arena sizes. State slots get fixed places; step slots are placed by lifetime (from
// defining instruction to free, in program order), best fit. scratch_bytes is the largest Task::scratch the device runs.
void plan_memory(Program& program);

// Bytes that a task's temporaries need when each lives from its op to its last reader; views share. An upper bound of what a
// kernel-by-kernel executor needs, exact for one without fusion.
struct ScratchPlan {
  std::vector<std::int64_t> offsets;  // of each value; -1: input, output or view (no storage of its own)
  std::int64_t bytes = 0;
};
ScratchPlan plan_scratch(const Graph& graph);

}  // namespace penstock
