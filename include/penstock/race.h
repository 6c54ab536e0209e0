// SPDX-License-Identifier: Apache-2.0
// The fastest of several tables of one model on this machine, by whole steps that run in turn; and a search whose best tables race.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/costs.h"
#include "penstock/search.h"

namespace penstock {

// Runs one step of a program and returns its seconds: `[&] { return session.step("mine", data).seconds; }`.
using TimedStep = std::function<double()>;

// The length of a race.
struct RaceOptions {
  int rounds = 3;                       // most times that a program gets its turn
  std::int64_t steps = 8, warm_up = 2;  // steps of a program in each round: those measured, and those before them
  std::function<void()> restart{};      // called at the begin of each round: sets the state back, as many steps on few batches lead nowhere
  std::function<void(const std::string& text)> progress{};  // called with a line there
};

// Seconds of a step of each program, in their order. In each round every program runs once, in turn, so that a slow minute of the machine
// slows all of them; a program's time is the median of its rounds' medians. After each round those of the slower half that are clearly
// behind the fastest (kBehind) leave; their samples have fewer rounds. Throws Error without rounds or steps, and what a step throws.
std::vector<Sample> race(const std::vector<TimedStep>& programs, const RaceOptions& options = {});
constexpr double kBehind = 1.1;  // the share by which a program is clearly behind: the rounds of one program mostly differ by less

// Whether a stayed longer in one race than b, or as long and was faster.
bool is_ahead(const Sample& a, const Sample& b);

// A table in a race.
struct Racer {
  FoundTable table;       // with its predicted time
  bool named = false;     // whether it is a published schedule, not found by the search
  std::string refused{};  // why it cannot be run; else empty
  Sample measured{};      // seconds of a step; count: the rounds that it was in

  int chunks() const { return table.schedule.stages() / static_cast<int>(table.schedule.actors.size()); }  // stages per actor
};

// The result of a search whose best tables raced.
struct RacedSearch {
  SearchProblem problem;                // the fastest table's
  SearchResult result;                  // for the fastest table; what is proven is proven for its prediction
  std::vector<Racer> racers;            // the fastest first, then the refused
  std::vector<std::string> unsearched;  // each number of stages per actor that has no costs, and why
};

// The tables that raced_search() searches for and runs.
struct RacedSearchOptions {
  std::vector<int> chunks = {1, 2};                         // stages per actor to search with
  SearchOptions search;                                     // its seconds are for all searches together
  int candidates = 6;                                       // how many of the tables found race, and how many of the named schedules
  RaceOptions race;                                         // of the tables that race
  std::string model = "the model";                          // what errors call it
  std::function<void(const std::string& text)> progress{};  // called with a line at the begin of each part
};

// Searches with each number of stages per actor; with all kinds of backward, and with whole ones alone. The best table of each search and
// the next best of all race each other and as many named schedules within the limit. A table that was found is preferred to the best named
// one only if it is ahead by more than a race of rounds can tell apart (kClear). `prepare` makes a table ready to run; where it throws
// Error, the table is refused. Throws Error where no number of stages has a problem, and where no table can be run.
RacedSearch raced_search(const std::function<SearchProblem(int chunks)>& problem, const std::function<TimedStep(const Schedule&)>& prepare,
                         const RacedSearchOptions& options = {});
constexpr double kClear = 1.02;

}  // namespace penstock
