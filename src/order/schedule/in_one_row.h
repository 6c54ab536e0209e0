// SPDX-License-Identifier: Apache-2.0
// A table's work on one actor.
#pragma once

#include "penstock/schedule.h"

namespace penstock {

// All actions of a table in one row, in an order in which they can run and in which each row of the table keeps its own; but of the updates
// of a stage that several actors have, the last. So stages read the same versions of their parameters, and add up the same gradients in the
// same order, as in the table. Throws Error for a table that is not valid for stages of this shape.
Schedule in_one_row(const Schedule& schedule, const StageShape& shape);

}  // namespace penstock
