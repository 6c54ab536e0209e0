// SPDX-License-Identifier: Apache-2.0
// Windows in which each step is drained before what it updates is read. There an update may wait for the gradients of all stages, as the
// norm that clips does, and nothing comes to a stop.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/table.h"

namespace penstock {

// The first step of a window of which an action needs another: that action. Each action needs itself.
struct FirstNeed {
  std::int32_t step = 0;
  Position by{};
};
// By row and action of a valid table: what needs it first, by what stages give each other and by the order of rows. Steps never fall along
// a row, and nothing needs what is first needed in a later step; so where each row waits for all others behind the last action that step k
// needs, no action of step k or before waits for that.
std::vector<std::vector<FirstNeed>> first_needs(const Schedule& schedule, const StageShape& shape);

// Throws Error naming row, cell and action unless each action reads of its stage's parameters what the step before its own has made, and no
// step before its own needs it. `why`: what waits for all gradients of a step, as the error's second line.
void check_drained(const Schedule& schedule, const StageShape& shape, const std::string& why);

}  // namespace penstock
