// SPDX-License-Identifier: Apache-2.0
// penstock schedule search: finds the best table for costs, links and a memory limit.
#include "cli/schedule_search.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/amount.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/schedule_race.h"
#include "cli/shared_options.h"
#include "cli/window_text.h"
#include "penstock/error.h"
#include "report/figures_json.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_text.h"
#include "search/relieve.h"

namespace penstock {
namespace {

void check_shape(const SearchArguments& arguments, bool measures) {
  ScheduleOptions shape = arguments.shape();
  const int window = std::exchange(shape.window, 1);
  make_schedule("sequential", shape);  // throws where the numbers are wrong
  const std::pair<bool, const char*> unused[] = {
      {shape.slices > 1, "--slices"}, {!shape.frozen.empty(), "--frozen"}, {shape.split_backward, "--split-backward"}};
  for (const auto& [is_given, flag] : unused)
    if (is_given)
      throw Error(concat(flag, ": a search orders whole micro-batches of trained stages, their backwards whole or apart as is faster"), {},
                  concat("leave out ", flag));
  if (window < 1) throw Error(concat("--window ", window, ": a table is for 1 step or more"));
  if (arguments.search.staleness < 0) throw Error(concat("--staleness ", arguments.search.staleness, ": it is 0 updates or more"));
  if (window == 1) return;
  if (measures)
    throw Error("--measure runs tables of one step", {concat("--window ", window)},
                "leave one of them out, and train with the table of --out");
  if (arguments.search.copies > 1)
    throw Error(concat("--copies ", arguments.search.copies, ": in a table for several steps each stage is on one actor"), {},
                "leave it out");
  if (arguments.search.order_transfers)
    throw Error(concat("--order-transfers: where transfers start is said in tables of one step, not of ", window), {},
                "leave one of --order-transfers and --window out");
  if (shape.forward_only) throw Error("--forward-only has no updates, of which --window is", {}, "leave one of them out");
}

nlohmann::json json_of(const SearchArguments& arguments, const SearchResult& result) {
  const Schedule& schedule = result.schedule;
  nlohmann::json out = figures_json(result);
  out.update({{"kind", "search"},
              {"stages", schedule.stages()},
              {"microbatches", schedule.microbatches()},
              {"steps", schedule.steps},
              {"activation_limit", nullptr},
              {"table", print(schedule)}});
  if (std::isfinite(arguments.search.activation_limit)) out["activation_limit"] = arguments.search.activation_limit;
  return out;
}

std::string text_of(const SearchArguments& arguments, const SearchResult& result) {
  std::vector<std::vector<std::string>> rows;
  const TableTime& time = result.time;
  for (std::size_t a = 0; a < time.busy.size(); ++a) {
    rows.push_back({concat("actor ", a), time_of(arguments, time.busy[a]), time_of(arguments, time.makespan - time.busy[a]),
                    activations(time.peak_live[a])});
  }
  const std::string proof = result.optimal ? "no order of these stages is faster"
                                           : concat("at most ", fixed(100 * result.gap(), 1), " % above the lower bound of ",
                                                    time_of(arguments, result.lower_bound));
  const std::string inferred =
      count_of(result.schedule, Kind::SEND_F) == 0
          ? ""
          : concat("\nits rows take ", time_of(arguments, result.inferred_time), " where transfers start as soon as they can");
  const auto tally = [&](const char* what, Kind kind) {
    const std::int64_t count = count_of(result.schedule, kind);
    return count > 0 ? concat(", ", count, what) : std::string();
  };
  return concat(
      table({"", "busy", "idle", "peak live"}, rows), "\nmakespan ", time_of(arguments, time.makespan), ", bubble ",
      fixed(100 * time.bubble(), 1), " %: ", proof, "\nfound by ", result.found_by, tally(" recomputed", Kind::R),
      tally(" offloaded", Kind::OFFLOAD), tally(" gathers", Kind::UNSHARD), inferred, "\nbest schedule by name of ",
      counted(result.schedule.stages(), "stage"), ": ",
      result.generator.empty() ? "none keeps the limit" : concat(result.generator, ", ", time_of(arguments, result.generator_time)), "\n",
      in_seconds(arguments.simulate) ? "" : concat(kOwnUnit, "\n"), window_text(result.schedule));
}

RacedSearch predicted_search(const SearchArguments& arguments) {
  RacedSearch found;
  found.problem = problem_of(arguments, arguments.shape().chunks);
  found.result = search_schedule(found.problem, {.seed = arguments.seed, .seconds = checked("--seconds", arguments.seconds)});
  return found;
}

void search_command(const SearchArguments& arguments, const RaceArguments& race) {
  const bool measures = !race.config.empty();
  check_shape(arguments, measures);
  const std::optional<RacedSearch> found = measures ? raced_search(arguments, race) : predicted_search(arguments);
  if (!found) return;
  const SearchResult& result = found->result;
  if (!arguments.out.empty()) write_file(arguments.out, print(result.schedule));
  if (arguments.simulate.json) {
    nlohmann::json out = json_of(arguments, result);
    if (measures) out["race"] = race_json(*found);
    return print_json(out);
  }
  if (measures) std::cout << race_text(*found) << "\nthe fastest, as predicted:\n";
  std::cout << text_of(arguments, result);
  if (arguments.simulate.show) std::cout << "\n" << drawing_of(arguments, found->problem, result.schedule);
}

// A plain number: a limit with a unit of bytes is meant for another command.
double activation_limit(const std::string& text) {
  if (const std::optional<double> limit = parse_number<double>(text)) return *limit;
  const bool is_bytes = parse_amount(text, Quantity::bytes).has_value();
  throw Error(concat("--activation-limit ", text, ": this is no number of micro-batches' activations"),
              {is_bytes ? "a schedule counts micro-batches; how many bytes one is, a model says" : "it is a number, above 0"},
              is_bytes ? "--activation-limit 6, or penstock plan CONFIG --memory-limit 16GB" : "--activation-limit 6");
}

}  // namespace

void add_search_options(CLI::App& command, SearchArguments& arguments) {
  add_table_options(command, arguments.simulate.table);
  add_cost_options(command, arguments.simulate);
  command
      .add_option_function<std::string>(
          "--activation-limit,--memory-limit",
          [&arguments](const std::string& text) { arguments.search.activation_limit = activation_limit(text); },
          "Micro-batches' activations that an actor may hold at once: a number of micro-batches, not of bytes [unlimited]")
      ->type_name("X");
  command.add_option("--allow", arguments.allowed, "What may keep a table within the limit [what has a time]")
      ->delimiter(',')
      ->check(CLI::IsMember({"recompute", "offload", "none"}));
  add_show_flag(command, arguments.simulate.show);
  add_json_flag(command, arguments.simulate.json);
}

TableNumbers machine_numbers(const SearchArguments& arguments) {
  check_size(arguments.simulate.table, 4096, 1 << 14);  // takes some seconds for all named schedules
  return table_numbers(arguments.simulate, arguments.shape().actors);
}

SearchNumbers search_numbers(const SearchArguments& arguments) {
  SearchNumbers search = arguments.search;
  if (!(search.activation_limit > 0))
    throw Error(concat("--activation-limit ", number(search.activation_limit), ": an actor holds more than 0 activations"));
  const auto allows = [&](const char* what, bool timed) {
    return arguments.allowed.empty() ? timed : std::ranges::find(arguments.allowed, what) != arguments.allowed.end();
  };
  search.recompute = allows("recompute", arguments.simulate.numbers.recompute.has_value());
  search.offload = allows("offload", arguments.simulate.numbers.offload.has_value());
  if (arguments.simulate.numbers.kept && arguments.allowed.empty() && !search.recompute && !search.offload)
    throw Error("--kept says nothing where nothing is recomputed or offloaded", {},
                "leave out --kept, or allow some: --allow recompute,offload");
  return search;
}

SearchProblem problem_of(const SearchArguments& arguments, int chunks) {
  const TableNumbers numbers = machine_numbers(arguments);
  ScheduleOptions shape = arguments.shape();
  shape.chunks = chunks;
  return problem_of(shape, search_numbers(arguments), numbers);
}

std::string drawing_of(const SearchArguments& arguments, const SearchProblem& problem, const Schedule& schedule) {
  const TableTime time =
      time_table(schedule, problem.shape, problem.costs, {.network = problem.network, .disturbance = {}, .record = true});
  const Timeline timeline = drawn_table(schedule, problem.shape, problem.costs, time, in_seconds(arguments.simulate));
  return timeline_text({timeline}, {100, terminal_of(stdout).colour});
}

std::string time_of(const SearchArguments& arguments, double time) {
  return time_text(time, in_seconds(arguments.simulate));
}

std::string activations(double live) {
  return time_text(live, false);
}

void add_schedule_search(CLI::App& schedule, const ModelRegistry& models) {
  CLI::App* command =
      schedule.add_subcommand("search", "Finds the fastest table for these costs, links and memory, and says how far from the best it is");
  const auto arguments = std::make_shared<SearchArguments>();
  const auto race = std::make_shared<RaceArguments>();
  race->models = &models;
  add_search_options(*command, *arguments);
  begin_group(*command, groups::kSearch);
  add_race_options(*command, *race);
  command->add_option("--copies", arguments->search.copies, "Copies of a stage's parameters at most; 2 allows bidirectional tables")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--staleness", arguments->search.staleness,
                   "Of a table for several steps: by how many updates parameters that are read may be late")
      ->capture_default_str();
  command->add_flag("--order-transfers", arguments->search.order_transfers,
                    "The table may say where sends and receives start, in place of as soon as they can");
  add_amount_option(
      *command, "--seconds", Quantity::seconds, [arguments](const Amount& amount) { arguments->seconds = amount.value; },
      "Seconds after which the search ends at the latest")
      ->default_str(short_decimal(arguments->seconds, 3));
  command->add_option("--seed", arguments->seed, "Seed of the random moves")->capture_default_str();
  add_log_options(*command, race->log);
  command->add_option("--out", arguments->out, "Write the table")->type_name("FILE.csv");
  command->footer(
      "Example:\n  penstock schedule search --actors 4 --microbatches 8 --activation-limit 6 --out best.csv --show\n"
      "  penstock schedule search --microbatches 8 --costs costs.json --measure examples/gpt.toml");
  command->callback([command, arguments, race] {
    check_beside(*command, {{{"--staleness"}, arguments->shape().window > 1, "--window N, for a table of several steps"}});
    search_command(*arguments, *race);
  });
}

}  // namespace penstock
