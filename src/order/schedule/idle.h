// Tables of micro-batches that differ in their stages.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// [stage][micro-batch]: whether the stage has nothing to do for it, and so no action. Empty: every stage works on all.
using IdleStages = std::vector<std::vector<bool>>;
inline bool is_idle(const IdleStages& idle, std::int32_t stage, std::int32_t microbatch) {
  return !idle.empty() && idle[stage][microbatch];
}

// validate(schedule, shape, microbatches), but that a stage has no action of a micro-batch for which it is idle. Throws Error also for an
// action that it has nevertheless.
void validate(const Schedule& schedule, const StageShape& shape, int microbatches, const IdleStages& idle);

}  // namespace penstock
