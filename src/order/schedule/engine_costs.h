// The engine's costs from a table's.
#pragma once

#include "penstock/table.h"
#include "schedule/engine.h"

namespace penstock {

// Sets EngineWork's stages, classes and tolerance.
void take_costs(EngineWork& work, const TableCosts& costs);

// EngineWork::arrival: a transfer occupies its link, or the medium that links share, as in time_table. The network must outlive it.
std::function<double(std::int32_t from, std::int32_t to, double ready, double bytes)> arrivals_over(const Network& network);

}  // namespace penstock
