// SPDX-License-Identifier: Apache-2.0
// How much of a batch's parts and texts is computed again so that ranks keep their room: DIP's choice for each forward and its backward
// (2504.14145), layer by layer.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "batch/modules.h"

namespace penstock {

// The most that a rank of the table holds at once.
double most_held(const ModuleProblem& problem, const ModuleTable& table);

// Returns the layers that each rank's backwards compute again in least time, so that it keeps problem.room with the runs in this order.
// None: the room is too small for that. Each rank is searched over so many nodes (batch/cover.h).
std::optional<std::vector<std::vector<int>>> layers_again(const ModuleProblem& problem, const ModuleTable& table, std::int64_t nodes);

// The runs in their order, where backwards compute these layers again.
ModuleTable with_again(const ModuleProblem& problem, const ModuleTable& table, std::vector<std::vector<int>> again);

// The fastest table that keeps problem.room. `free`: the problem's without problem.memory. Beside its order others are searched for, as if
// backwards computed none, half, or all of their layers again; where an order stalls, with fewer micro-batches at once. Then layers are
// chosen for each order. So a table is found wherever each micro-batch by itself has room with all layers computed again and whole
// backwards. Throws Error where none is found.
ModuleResult modules_in_room(const ModuleProblem& problem, const ModuleResult& free, const ModuleSearchOptions& options = {});

}  // namespace penstock
