// SPDX-License-Identifier: Apache-2.0
// The versions of parameters in a table for a window of training steps. A stage's parameters have version k behind its k-th U of the table.
// Which one an action reads is what the table says, never an accident of timing, so how stale a gradient is, and how many versions an actor
// keeps, is known before anything runs.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

struct ReadVersion {
  std::int32_t version = -1;  // -1: it reads none
  std::int32_t ahead = 0;     // predicted by so many updates

  bool operator==(const ReadVersion&) const = default;
};
// For each stage, numbered whole, whether its forwards or backwards are on several actors. Replicas are, and stages without parameters,
// such as attention, may be.
std::vector<bool> spread_stages(const Schedule& schedule);
// For each stage whether it is spread and the table of several steps has no U of it: it has no parameters, and so no versions.
std::vector<bool> unversioned_stages(const Schedule& schedule);

// By row and action. Takes a table of which check_versions says nothing.
std::vector<std::vector<ReadVersion>> read_versions(const Schedule& schedule);

// The largest number of updates that a stage has had between what a gradient was made with and its own (PipeDream: p-1-i on actor i).
std::int32_t staleness(const Schedule& schedule, std::int32_t actor);

// Steps of a wave of HetPipe's workers (lower/waves.cpp): as many as each has in flight, one more than an update is late at most.
std::int32_t steps_of_wave(const Schedule& schedule);
// The most updates of another worker, of those of the steps before its own, that what an action reads lacks, where pulls may be `distance`
// waves late.
std::int32_t missing_of_others(const Schedule& schedule, std::int32_t distance);

// A copy of a stage's parameters that the actor has beside the newest version: an older version, from the U that writes over it, or a
// prediction, from its first reader, and in both cases to its last reader. Places are those of the actor's row.
struct HeldVersion {
  std::int32_t stage = 0;  // whole
  std::size_t first = 0, last = 0;
};
std::vector<HeldVersion> versions_beside(const Schedule& schedule, std::int32_t actor);
// The most versions of a stage's parameters that the actor has at once, the newest included.
std::int32_t versions_held(const Schedule& schedule, std::int32_t actor);

// The table of one of the steps alone; of a table for one, all of it.
Schedule one_step(const Schedule& schedule, std::int32_t step);

// Throws Error naming row, cell and versions where an action reads parameters that more than `most` updates of the stage stand between and
// its own step's.
void check_staleness(const Schedule& schedule, std::int32_t most);

// Throws Error naming row, cell, action and version unless each stage with a backward has a U for each step of the window, behind all
// gradients of that step in its row, in order; an action reads a version that is made above it in its row, I or W on another actor than
// its F what that read; and all of a stage with parameters but I and W is on actors that have forwards of it.
void check_versions(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches);

}  // namespace penstock
