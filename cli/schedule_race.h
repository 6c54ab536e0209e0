// penstock schedule search --measure: races the tables that are best by prediction in whole training steps.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/schedule_search.h"
#include "penstock/costs.h"
#include "penstock/trace.h"

namespace penstock {

struct RaceArguments {
  std::string config;  // the configuration that is measured; empty: nothing is measured
  int candidates = 6;  // how many of the tables found race, and how many of the named schedules
  int rounds = 3;
  std::int64_t steps = 8;
  const ModelRegistry* models = nullptr;
};
// Adds --measure, --candidates, --rounds and --steps. `race` must outlive the command's parse.
void add_race_options(CLI::App& command, RaceArguments& race);

struct Racer {
  FoundTable table;
  bool named = false;     // whether it is a published schedule, not found by the search
  std::string refused{};  // why the configuration cannot run it; else empty
  Sample measured{};      // seconds of a step; count: the rounds that it was in
};

struct RacedSearch {
  SearchProblem problem;                // the fastest table's
  SearchResult result;                  // for the fastest table; what is proven is proven for its prediction
  std::vector<Racer> racers;            // the fastest first, then the refused
  std::vector<std::string> unsearched;  // each number of stages per actor that has no costs, and why
};

// Searches with --chunks stages per actor or, where that is not given, with one and with two; with all kinds of backward, and with whole
// ones alone. The best table of each search and the next best of all race each other and as many named schedules within the limit. A table
// that was found is preferred to the best named one only if it is ahead by more than a race of rounds can tell apart (kClear). Nullopt in a
// process that is not the controller. Throws Error where flags, costs and configuration do not fit, and where no table can be run.
std::optional<RacedSearch> raced_search(const SearchArguments& arguments, const RaceArguments& race);

nlohmann::json race_json(const RacedSearch& raced);
std::string race_text(const RacedSearch& raced);

}  // namespace penstock
