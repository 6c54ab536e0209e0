// SPDX-License-Identifier: Apache-2.0
// The options that shape a table, a row each. The keys of configurations, the flags of the command line, the arguments of Python and the
// checks of tables that are read from files all come from these rows, so a new option is its member of ScheduleOptions with its row here,
// and the generator that reads it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

struct ScheduleOption {
  using Member = std::variant<int ScheduleOptions::*, bool ScheduleOptions::*, std::vector<double> ScheduleOptions::*>;
  // Where a run's configuration says it: under its own name in [pipeline]; elsewhere, as it follows from the model or from the lengths of
  // slices; or nowhere, as there are only tables with it.
  enum class Configured { here, elsewhere, nowhere };
  // Rules and all registered schedules take it, or only these, or only those of them whose ScheduleInfo::takes names its flag.
  enum class TakenBy { all, registered, some };

  std::string_view name;           // "in_flight" of pipeline.in_flight and --in-flight
  std::string_view unit, meaning;  // "micro-batches", "that an actor holds at most"; unit is "" where there is none
  Member member;
  double least = 0, most = 1e6;  // of a number, or of each of several
  TakenBy taken_by = TakenBy::some;
  Configured configured = Configured::here;
  bool is_size = false;  // it says how large the table is, as a table in a file does itself

  std::string flag() const;                             // "--in-flight"
  bool is_given(const ScheduleOptions& options) const;  // whether it is not as ScheduleOptions() has it
};

// In the order of ScheduleOptions.
std::span<const ScheduleOption> schedule_options();
// The option of that flag, of which there must be one.
const ScheduleOption& option_of(std::string_view flag);
// Sets an option by its name. Throws Error for a name that there is not (the nearest is named), a value of another kind, or one out of
// the option's bounds.
using OptionValue = std::variant<bool, int, double, std::vector<double>>;
void set_option(ScheduleOptions& options, const std::string& name, const OptionValue& value);
// Throws Error for a number that is given and below 1, or above the option's bound where it is no size: how large a table may be is
// another's to say. `name`: the schedule's, for the message.
void check_bounds(std::string_view name, const ScheduleOptions& options);

}  // namespace penstock
