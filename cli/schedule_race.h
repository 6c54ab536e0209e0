// SPDX-License-Identifier: Apache-2.0
// penstock schedule search --measure: races the tables that are best by prediction in whole training steps.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/log.h"
#include "cli/schedule_search.h"
#include "penstock/race.h"
#include "penstock/trace.h"

namespace penstock {

struct RaceArguments {
  std::string config;  // the configuration that is measured; empty: nothing is measured
  std::string mesh;    // of its devices instead of its own; empty: its own
  int candidates = 6;  // how many of the tables found race, and how many of the named schedules
  int rounds = 3;
  std::int64_t steps = 8;
  Log log;
  const ModelRegistry* models = nullptr;
};
// Adds --measure, --mesh, --candidates, --rounds and --steps. `race` must outlive the command's parse.
void add_race_options(CLI::App& command, RaceArguments& race);

// Nullopt in a process that is not the controller. Throws Error where flags, costs and configuration do not fit, and as penstock/race.h
// says.
std::optional<RacedSearch> raced_search(const SearchArguments& arguments, const RaceArguments& race);

nlohmann::json race_json(const RacedSearch& raced);
std::string race_text(const RacedSearch& raced);

}  // namespace penstock
