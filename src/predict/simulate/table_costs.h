// SPDX-License-Identifier: Apache-2.0
// A table's costs from what `penstock profile` measured.
#pragma once

#include "penstock/costs.h"
#include "penstock/table.h"
#include "simulate/durations.h"

namespace penstock {

// Seconds of the table's actions, by kind and stage, from tasks of models that were cut into as many stages as the table has. The file
// holds equal tasks once, under the first stage and kind that had them: so a stage without any is like the one before it, and one whose B
// is all that there is of I and W has nothing else to do in the other. R that was not measured takes as long as F. Activations of a stage
// count actors/stages. U, collectives and offloading cost nothing, and bytes are left 0: a profile does not know them.
// Throws Error where the file lacks what the table needs: the kinds and stages, and the command that would measure them.
TableCosts table_costs_of(const Costs& costs, const Schedule& schedule, const CostContext& context);

}  // namespace penstock
