// SPDX-License-Identifier: Apache-2.0
// The memory plan: a place for every slot and for every task's temporaries.
#pragma once

#include "penstock/program.h"

namespace penstock {

// Sets Slot::offset and the devices' arena sizes. Slots that live across steps get fixed places; step and host slots are placed by
// lifetime, from the defining instruction to the free in program order (offsets.h says how well). Sets Task::scratch by plan_scratch, and
// scratch_bytes to the largest that the device runs.
void plan_memory(Program& program);
// Whether any slot has a place, or there are no slots; verify() has checked then that all have one. A program without a plan can be
// verified and simulated, not run.
bool has_memory_plan(const Program& program);

// Places of a task's temporaries, each from its op to its last reader. Views share their base's storage (a reshape of a value that is not
// dense copies and has its own, unless it only splits dims); an elementwise op writes over an operand that dies there. What a cat or such a
// reshape would copy, and nobody else reads, lies in their result from the start, where the op that makes it can write it there. Outputs
// are written into their slots; an output that is a view of a temporary is copied at the end. It is an upper bound for an executor that
// runs kernel by kernel, exact for one without fusion.
struct ScratchPlan {
  std::vector<std::int64_t> offsets;  // by value; -1: input, output or view (no storage of its own)
  std::vector<bool> views;            // by value: whether it lies in another's storage, which then lives long enough for it
  std::vector<bool> parts;            // by value: whether that is the storage of what it is copied to, or of what views it
  std::int64_t bytes = 0;
};
ScratchPlan plan_scratch(const Graph& graph);
// Whether kernels of the op write results of any strides, so that these may be parts of other values.
bool writes_strided(const Op& op);
const ScratchPlan& plan_scratch(const TaskGraph& graph);  // found once

}  // namespace penstock
