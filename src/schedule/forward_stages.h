// Stages that only run forward, as those of frozen layers before all that is trained.
#pragma once

#include "penstock/schedule.h"

namespace penstock {

// The table without actions that these stages have nothing to do for: backwards, updates and sums of gradients.
Schedule without_absent_backwards(Schedule schedule, const StageShape& shape);

}  // namespace penstock
