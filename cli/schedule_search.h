// SPDX-License-Identifier: Apache-2.0
// Arguments that penstock schedule search and penstock schedule compare share: costs, links and a limit, without a table.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "cli/simulate.h"
#include "penstock/search.h"
#include "simulate/table_machine.h"

namespace penstock {

struct SearchArguments {
  SimulateArguments simulate;        // it uses table.options, numbers, costs, links, show and json
  SearchNumbers search;              // without what --allow says
  std::vector<std::string> allowed;  // --allow
  double seconds = 10;
  std::uint64_t seed = 0;
  std::string out;

  const ScheduleOptions& shape() const { return simulate.table.options; }
};
// Adds the flags for shape, costs, links, --activation-limit, --show and --json.
void add_search_options(CLI::App& command, SearchArguments& arguments);

// The numbers of the machine, and what the search may do. They throw Error for flags that are wrong, or contradict each other.
TableNumbers machine_numbers(const SearchArguments& arguments);
SearchNumbers search_numbers(const SearchArguments& arguments);
// The search for a chain of so many stages of each actor. Throws Error as these, and for costs that were not measured.
SearchProblem problem_of(const SearchArguments& arguments, int chunks);

// The schedule drawn for the terminal.
std::string drawing_of(const SearchArguments& arguments, const SearchProblem& problem, const Schedule& schedule);
// A time as text: in seconds with --costs, else in the flags' unit.
std::string time_of(const SearchArguments& arguments, double time);
std::string activations(double live);  // "5.5"

}  // namespace penstock
