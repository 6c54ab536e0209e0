// SPDX-License-Identifier: Apache-2.0
// Arguments that penstock schedule search and penstock schedule compare share: costs, links and a limit, without a table.
#pragma once

#include <CLI/App.hpp>
#include <limits>
#include <string>

#include "cli/simulate.h"
#include "penstock/search.h"

namespace penstock {

struct SearchArguments {
  SimulateArguments simulate;  // it uses table.options, costs, links, show and json
  double memory_limit = std::numeric_limits<double>::infinity();
  double seconds = 10;
  int copies = 1;
  int staleness = 1;
  std::vector<std::string> allowed;  // --allow
  bool order_transfers = false;
  std::uint64_t seed = 0;
  std::string out;

  const ScheduleOptions& shape() const { return simulate.table.options; }
};
// Adds the flags for shape, costs, links, --activation-limit, --show and --json.
void add_search_options(CLI::App& command, SearchArguments& arguments);

// The problem for a chain of `stages` stages. Throws Error for flags that contradict each other and for costs that were not measured.
SearchProblem problem_of(const SearchArguments& arguments, int stages);

// The schedule drawn for the terminal.
std::string drawing_of(const SearchArguments& arguments, const SearchProblem& problem, const Schedule& schedule);
// A time as text: in seconds with --costs, else in the flags' unit.
std::string time_of(const SearchArguments& arguments, double time);
std::string activations(double live);  // "5.5"

}  // namespace penstock
