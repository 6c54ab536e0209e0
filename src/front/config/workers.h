// SPDX-License-Identifier: Apache-2.0
// The tables of workers whose stages lie differently (pipeline.workers).
#pragma once

#include <vector>

#include "config/config.h"
#include "penstock/schedule.h"

namespace penstock {

// The table of each worker, in which each of the schedule's stages is as many of the model's as pipeline.workers says; the schedule itself
// where it says nothing. Throws Error unless it says a whole number of each stage, for as many workers as an actor has devices, and all
// workers have as many in all.
std::vector<Schedule> tables_of_workers(const Config& config, const Schedule& schedule);

}  // namespace penstock
