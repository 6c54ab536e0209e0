// penstock schedule search --measure: the tables that are best by prediction, raced in whole training steps.
#pragma once

#include <CLI/App.hpp>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/schedule_search.h"
#include "penstock/trace.h"
#include "simulate/costs.h"

namespace penstock {

struct RaceArguments {
  std::string config;  // what is measured; empty: nothing
  int candidates = 6;  // of the tables found, and as many of the named schedules
  int rounds = 3;
  std::int64_t steps = 8;
  const ModelRegistry* models = nullptr;
};
// --measure, --candidates, --rounds and --steps. `race` outlives the command's parse.
void add_race_options(CLI::App& command, RaceArguments& race);

struct Racer {
  FoundTable table;
  bool named = false;     // a published schedule, not found by the search
  std::string refused{};  // why the configuration cannot run it; else empty
  Sample measured{};      // seconds of a step; count: rounds that it was in
};

struct RacedSearch {
  SearchProblem problem;                // of the fastest table
  SearchResult result;                  // the fastest table; what is proven is proven of its prediction
  std::vector<Racer> racers;            // the fastest first, then the refused
  std::vector<std::string> unsearched;  // a number of stages per actor that has no costs, and why
};

// Searches with --chunks stages per actor or, unless that was given, with one and with two; with all kinds of backward, and with whole ones
// alone. The best of each search and the next best of all race each other and as many named schedules within the limit. A table found is
// taken before the best named one only if it is ahead of it by more than a race of rounds tells apart (kClear). Nullopt in a
// process that is not the controller. Throws Error where flags, costs and configuration do not fit, and where no table can be run.
std::optional<RacedSearch> raced_search(const SearchArguments& arguments, const RaceArguments& race);

nlohmann::json race_json(const RacedSearch& raced);
std::string race_text(const RacedSearch& raced);

}  // namespace penstock
