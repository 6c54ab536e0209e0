// A schedule as a timeline of text, one line per actor.
#pragma once

#include <string>

#include "penstock/schedule.h"

namespace penstock {

// Of a valid table, at F, I and W one slot and B two slots per stage, without latency. "." is an idle slot; a stage's number is left
// out where each actor has only one. The last line gives time, bubble and peak live activations, in slots and micro-batches of one
// stage.
std::string draw(const Schedule& schedule, const StageShape& shape);

}  // namespace penstock
