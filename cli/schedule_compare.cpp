// SPDX-License-Identifier: Apache-2.0
// penstock schedule compare: shows every schedule side by side under the same costs, links and memory limit.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/schedule_search.h"
#include "penstock/error.h"
#include "report/table.h"
#include "rules/load_schedule.h"
#include "search/relieve.h"

namespace penstock {
namespace {

struct Row {
  std::string name, title;  // the schedule's name; and with its options
  int chunks = 1;
  std::string refused;  // why there is no such table; empty: there is one
  Schedule schedule;
  TableTime time;
  SearchProblem problem{};      // its work and limits
  double peak = 0, copies = 1;  // peak: activations; copies: of each stage's parameters
  bool fits = false;            // whether it fits into the memory limit
};

double copies_of(const Schedule& schedule) {
  std::set<std::pair<std::int32_t, std::size_t>> homes;
  for (std::size_t a = 0; a < schedule.actors.size(); ++a)
    for (const Action& action : schedule.actors[a]) homes.emplace(action.stage, a);
  return schedule.stages() > 0 ? static_cast<double>(homes.size()) / schedule.stages() : 1;
}

// The tables of each schedule, with the chunks asked for or, where it does not take those, with 2 or 1; else why there are none. Frozen
// stages take shares of a trained stage's forward, so they are other work with other chunks.
std::vector<RegisteredTable> tables_of(const ScheduleOptions& shape) {
  std::vector<RegisteredTable> out;
  std::set<std::string> found;
  for (const int chunks : shape.frozen.empty() ? std::vector<int>{shape.chunks, 2, 1} : std::vector<int>{shape.chunks}) {
    ScheduleOptions with = shape;
    with.chunks = chunks;
    std::set<std::string> now;
    for (RegisteredTable& table : registered_tables(with)) {
      if (!table.refused.empty() || found.contains(table.name)) continue;
      now.insert(table.name);
      out.push_back(std::move(table));
    }
    found.merge(now);
  }
  for (RegisteredTable& table : registered_tables(shape))
    if (!found.contains(table.name)) out.push_back(std::move(table));
  return out;
}

// A file's table; where it is not for as many actors and micro-batches as the others, that is why it is refused.
RegisteredTable own_table(const std::string& file, const TableChoice& choice) {
  RegisteredTable out{.name = file, .options = choice.options, .schedule = load_schedule(file, choice.options), .refused = {}};
  validate(out.schedule, shape_of(out.schedule));
  const auto actors = static_cast<int>(out.schedule.actors.size());
  out.options.chunks = std::max(1, out.schedule.whole_stages() / std::max(1, actors));
  out.options.microbatches = out.schedule.microbatches();
  if (actors != choice.options.actors || out.schedule.microbatches() != choice.options.microbatches)
    out.refused = concat("it is for ", counted(actors, "actor"), " and ", counted(out.schedule.microbatches(), "micro-batch"),
                         "; compare it by --actors ", actors, " --microbatches ", out.schedule.microbatches());
  return out;
}

// Returns the tables of the files and schedules that were named, or of all schedules. Throws Error for a name that there is not.
std::vector<RegisteredTable> chosen_tables(const SearchArguments& arguments, const std::vector<std::string>& named) {
  std::vector<RegisteredTable> all = tables_of(arguments.shape());
  if (named.empty()) return all;
  std::vector<RegisteredTable> out;
  for (const std::string& name : named) {
    if (names_file(name)) {
      out.push_back(own_table(name, arguments.simulate.table));
      continue;
    }
    if (std::ranges::find(all, name, &RegisteredTable::name) == all.end()) make_schedule(name, arguments.shape());  // which says why
    std::ranges::copy_if(all, std::back_inserter(out), [&](const RegisteredTable& table) { return table.name == name; });
  }
  return out;
}

// Where that is allowed, recomputes or offloads what a table holds beyond the limit.
void relieve_row(Row& row) {
  if (!row.problem.recompute && !row.problem.offload) return;
  std::optional<Schedule> relieved = relieve(row.problem, row.schedule);
  if (!relieved) return;
  row.schedule = std::move(*relieved);
  if (const std::int64_t count = count_of(row.schedule, Kind::R)) row.title += concat(", ", count, " recomputed");
  if (const std::int64_t count = count_of(row.schedule, Kind::OFFLOAD)) row.title += concat(", ", count, " offloaded");
}

// The table's row where what it takes is known; else it is refused with what costs lack.
Row row_of(const SearchNumbers& search, const TableNumbers& numbers, RegisteredTable&& table) {
  Row row{table.name, table.title(), table.options.chunks, table.refused, std::move(table.schedule), {}};
  if (!row.refused.empty()) return row;
  try {
    row.schedule = sharded_by(numbers, std::move(row.schedule));
    row.problem = problem_of(row.schedule, search, numbers);
  } catch (const Error& error) {
    if (!numbers.measured) throw;
    row.refused = split(error.what(), '\n')[0];
    return row;
  }
  relieve_row(row);
  row.time =
      time_table(row.schedule, row.problem.shape, row.problem.costs, {.network = row.problem.network, .disturbance = {}, .record = true});
  row.peak = *std::max_element(row.time.peak_live.begin(), row.time.peak_live.end());
  row.copies = copies_of(row.schedule);
  row.fits = row.peak <= search.activation_limit * (1 + 1e-9);
  return row;
}

// The rows within the limit by time, then those beyond it by time, then the refused ones.
std::vector<Row> rows_of(const SearchArguments& arguments, const std::vector<std::string>& named) {
  std::vector<Row> rows;
  const TableNumbers numbers = machine_numbers(arguments);
  const SearchNumbers search = search_numbers(arguments);
  for (RegisteredTable& table : chosen_tables(arguments, named)) rows.push_back(row_of(search, numbers, std::move(table)));
  const auto order = [](const Row& row) { return std::tuple{!row.refused.empty(), !row.fits, row.time.makespan, row.peak}; };
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) { return order(a) < order(b); });
  return rows;
}

nlohmann::json json_of(const Row& row) {
  if (!row.refused.empty()) return {{"name", row.name}, {"refused", row.refused}};
  return {{"name", row.name},
          {"title", row.title},
          {"chunks", row.chunks},
          {"makespan", row.time.makespan},
          {"bubble", row.time.bubble()},
          {"peak_live", row.time.peak_live},
          {"transfers", row.time.transfers.size()},
          {"copies", row.copies},
          {"fits", row.fits}};
}

std::string text_of(const SearchArguments& arguments, const std::vector<Row>& rows) {
  std::vector<std::vector<std::string>> cells;
  std::string refused;
  for (const Row& row : rows) {
    if (!row.refused.empty()) {
      refused += concat(row.name, ": ", row.refused, "\n");
      continue;
    }
    cells.push_back({row.title, concat(row.chunks), time_of(arguments, row.time.makespan), fixed(100 * row.time.bubble(), 1) + " %",
                     activations(row.peak), concat(row.time.transfers.size()), activations(row.copies), row.fits ? "" : "over the limit"});
  }
  const ScheduleOptions& shape = arguments.shape();
  const std::string sides = concat(counted(shape.actors, "actor"), ", ", counted(shape.microbatches, "micro-batch"), "\n\n",
                                   table({"", "chunks", "time", "bubble", "peak live", "transfers", "copies", ""}, cells),
                                   in_seconds(arguments.simulate) ? "" : concat(kOwnUnit, "\n"));
  return refused.empty() ? sides : concat(sides, "\nrefused:\n", refused);
}

void compare_command(const SearchArguments& arguments, const std::vector<std::string>& named) {
  make_schedule("sequential", arguments.shape());  // throws where the numbers are wrong
  const std::vector<Row> rows = rows_of(arguments, named);
  if (arguments.simulate.json) {
    nlohmann::json out = {{"kind", "compare"}, {"schedules", nlohmann::json::array()}};
    for (const Row& row : rows) out["schedules"].push_back(json_of(row));
    return print_json(out);
  }
  std::cout << text_of(arguments, rows);
  if (!arguments.simulate.show) return;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, rows.size()) && rows[i].refused.empty(); ++i)
    std::cout << "\n" << rows[i].title << "\n" << drawing_of(arguments, rows[i].problem, rows[i].schedule);
}

}  // namespace

void add_schedule_compare(CLI::App& schedule) {
  CLI::App* command =
      schedule.add_subcommand("compare", "Shows all schedules, and own tables, side by side for these costs, links and memory, best first");
  const auto arguments = std::make_shared<SearchArguments>();
  const auto named = std::make_shared<std::vector<std::string>>();
  begin_group(*command, groups::kWhat);
  command->add_option("TABLE", *named, "Own tables, FILE.csv or FILE.rules, and schedules' names [all schedules]");
  add_search_options(*command, *arguments);
  command->footer(
      "Example:\n  penstock schedule compare --actors 4 --microbatches 8 --latency 0.5 --activation-limit 6\n"
      "  penstock schedule compare examples/schedules/1f1b.rules 1f1b zb-h1 --actors 4 --microbatches 8");
  command->callback([arguments, named] { compare_command(*arguments, *named); });
}

}  // namespace penstock
