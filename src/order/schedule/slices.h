// SPDX-License-Identifier: Apache-2.0
// Slices of stages (penstock/schedule.h): what the files that make, check and time such tables share.
#pragma once

#include "penstock/schedule.h"

namespace penstock {

// Slice 0 of the stage of which `stage` is a slice or a block: by it go U, UNSHARD, RESHARD and REDUCE_GRAD, and the costs of these
// (penstock/table.h).
inline std::int32_t first_slice(std::int32_t stage, const Schedule& schedule) {
  return number_of({part_of(stage, schedule.slices, schedule.blocks).stage}, schedule.slices, schedule.blocks);
}

// The stage of the model that the action is of.
inline std::int32_t whole_stage(const Action& action, const Schedule& schedule) {
  return part_of(action.stage, schedule.slices, schedule.blocks).stage;
}

// The actions of a table without blocks apart on the first `slices` slices of each stage, as a table of so many.
Schedule first_slices(const Schedule& schedule, int slices);

}  // namespace penstock
