// SPDX-License-Identifier: Apache-2.0
// Makes a table keep a memory limit: recomputes some micro-batches, offloads others.
#pragma once

#include <optional>

#include "penstock/search.h"

namespace penstock {

// The table of the problem's stages with R right before some backwards, and OFFLOAD right behind some forwards with a RELOAD before their
// backward, so that no actor ever holds more than `limit`; as it is where it keeps that anyway; nothing where that was not reached. Walks
// through time: where an actor holds too much, of the micro-batches that are there and not yet at their backward the one gives way that
// costs least time for what it frees (the time of R less the idle time before the backward; what of the copies cannot be hidden), of equal
// ones the one whose backward is farthest. Takes back, from the last, what turns out not to be needed. Places at most as many actions as
// there are micro-batches of stages, each in time linear in the table.
std::optional<Schedule> relieve(const SearchProblem& problem, Schedule schedule);

// Counts the actions of the kind in a table; one that names several micro-batches counts as often.
std::int64_t count_of(const Schedule& schedule, Kind kind);

}  // namespace penstock
