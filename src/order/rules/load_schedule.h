// SPDX-License-Identifier: Apache-2.0
// Makes a schedule's table from rules, or from whatever else names a schedule.
#pragma once

#include <string>

#include "penstock/rules.h"
#include "penstock/table.h"
#include "schedule/engine.h"

namespace penstock {

// The table that the rules make under these costs of all stages, and links (latency, bandwidth and medium count, as in time_table, whose
// times for the table are these). Throws Error as make_schedule does, and for options.slices.
Listed schedule_by(const Rules& rules, const ScheduleOptions& options, const TableCosts& costs, const Network& network = {});

// Whether `what` is the file of a table, which says itself how many actors, stages and micro-batches it has.
bool names_table(const std::string& what);
bool names_rules(const std::string& what);
Rules load_rules(const std::string& file);
// The schedule of NAME, FILE.csv (`options` do not matter) or FILE.rules. Throws Error.
Schedule load_schedule(const std::string& what, const ScheduleOptions& options);

}  // namespace penstock
