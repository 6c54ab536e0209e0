// A table's costs from what `penstock profile` measured.
#pragma once

#include "simulate/costs.h"
#include "simulate/durations.h"
#include "simulate/table.h"

namespace penstock {

// Seconds of the table's actions, by kind and stage, from tasks of models that were cut into as many stages as the table has. A stage
// without a task of its own shares that of the last stage before it with one: of equal tasks only the first is in the file. Activations
// of a stage count actors/stages. U, collectives and offloading cost nothing, and bytes are left 0: a profile does not know them.
// Throws Error where the file lacks what the table needs: the kinds and stages, and the command that would measure them.
TableCosts table_costs_of(const Costs& costs, const Schedule& schedule, const CostContext& context);

}  // namespace penstock
