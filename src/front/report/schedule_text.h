// SPDX-License-Identifier: Apache-2.0
// Draws a schedule as text, one line per actor.
#pragma once

#include <string>

#include "penstock/schedule.h"

namespace penstock {

// Draws a valid table in which F, I and W take one slot and B takes two per stage, without latency. "." is an idle slot; a stage's number
// is left out where each actor has only one. The last line gives time, bubble and peak live activations, in slots and micro-batches of one
// stage.
std::string draw(const Schedule& schedule, const StageShape& shape);

}  // namespace penstock
