// SPDX-License-Identifier: Apache-2.0
// The figures of steps as JSON objects, by the names that the program's --json prints and that Python's dicts have.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "penstock/search.h"
#include "simulate/explain.h"
#include "simulate/table_machine.h"

namespace penstock {

// Times are in the step's own unit; memory is in micro-batches' activations, or in bytes where times are seconds.
nlohmann::ordered_json figures_json(const SimulatedTable& step);
// The figures that a timeline has by itself, by the names of a simulated table's; null for peaks of memory that is not known.
nlohmann::ordered_json figures_json(const Timeline& timeline);
// Figures of the table that a search found, and of the search; null for "generator" where no registered schedule keeps the limit.
nlohmann::ordered_json figures_json(const SearchResult& found);
// "critical_path", "idle" by device, and "changes", the best first.
nlohmann::ordered_json figures_json(const Explanation& explanation);

}  // namespace penstock
