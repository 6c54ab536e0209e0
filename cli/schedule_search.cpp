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

#include "base/bytes.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/schedule_race.h"
#include "cli/shared_options.h"
#include "cli/window_text.h"
#include "penstock/error.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_text.h"
#include "search/relieve.h"
#include "simulate/table_costs.h"

namespace penstock {
namespace {

// A table that runs one micro-batch after the other, with B, or with I and W; it shows which costs there are.
Schedule probe(const SearchArguments& arguments, int stages, bool split) {
  ScheduleOptions options = arguments.shape();
  options.window = 1;
  options.chunks = stages / options.actors;
  Schedule schedule = make_schedule("sequential", options);
  if (!split) return schedule;
  schedule.name = options.chunks == 1 ? "zb-h1" : "SCHEDULE.csv";  // the schedule to profile if I and W were not measured
  for (auto& row : schedule.actors) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].kind != Kind::B) continue;
      row[i].kind = Kind::W;
      Action input = row[i];
      input.kind = Kind::I;
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(i++), input);
    }
  }
  return schedule;
}

// Sets the costs of the kinds of backward that were measured: B, or I and W, or both; at least one of these is required.
void set_measured_costs(const SearchArguments& arguments, int stages, SearchProblem& problem) {
  const SimulateArguments& flags = arguments.simulate;
  const Costs costs = parse_costs(read_file(flags.costs), flags.costs);
  const CostContext context{.file = flags.costs, .backend = flags.backend};
  problem.costs = table_costs_of(costs, probe(arguments, stages, false), context);
  try {
    const TableCosts split = table_costs_of(costs, probe(arguments, stages, true), context);
    for (std::size_t s = 0; s < split.stages.size(); ++s)
      for (const Kind kind : {Kind::I, Kind::W})
        problem.costs.stages[s].time[static_cast<std::size_t>(kind)] = split.stages[s].time[static_cast<std::size_t>(kind)];
  } catch (const Error&) {
    problem.split = false;
  }
  set_bytes(flags, 1, problem.costs);
  set_memory_costs(flags, static_cast<double>(problem.actors) / stages, problem.costs);
  const bool needs_links = problem.actors > 1 && !flags.latency;
  problem.network = network_of(flags, problem.actors, needs_links ? network_of(costs, context) : Network{});
}

void set_costs(const SearchArguments& arguments, int stages, SearchProblem& problem) {
  const SimulateArguments& flags = arguments.simulate;
  const double share = static_cast<double>(problem.actors) / stages;
  problem.costs = uniform_costs(stages, unit_costs(flags), flags.per_stage ? 1 : share);
  for (StageCosts& stage : problem.costs.stages) stage.live = share;
  set_memory_costs(flags, share, problem.costs);
  problem.network = network_of(flags, problem.actors, {});
}

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
  if (arguments.staleness < 0) throw Error(concat("--staleness ", arguments.staleness, ": it is 0 updates or more"));
  if (window == 1) return;
  if (measures)
    throw Error("--measure runs tables of one step", {concat("--window ", window)},
                "leave one of them out, and train with the table of --out");
  if (arguments.copies > 1)
    throw Error(concat("--copies ", arguments.copies, ": in a table for several steps each stage is on one actor"), {}, "leave it out");
  if (arguments.order_transfers)
    throw Error(concat("--order-transfers: where transfers start is said in tables of one step, not of ", window), {},
                "leave one of --order-transfers and --window out");
  if (shape.forward_only) throw Error("--forward-only has no updates, of which --window is", {}, "leave one of them out");
}

nlohmann::json json_of(const SearchArguments& arguments, const SearchResult& result) {
  const Schedule& schedule = result.schedule;
  nlohmann::json out = {{"kind", "search"},
                        {"stages", schedule.stages()},
                        {"microbatches", schedule.microbatches()},
                        {"steps", schedule.steps},
                        {"makespan", result.time.makespan},
                        {"bubble", result.time.bubble()},
                        {"lower_bound", result.lower_bound},
                        {"gap", result.gap()},
                        {"optimal", result.optimal},
                        {"found_by", result.found_by},
                        {"nodes", result.nodes},
                        {"inferred_makespan", result.inferred_time},
                        {"sends", count_of(schedule, Kind::SEND_F) + count_of(schedule, Kind::SEND_B)},
                        {"recomputed", count_of(schedule, Kind::R)},
                        {"offloaded", count_of(schedule, Kind::OFFLOAD)},
                        {"gathers", count_of(schedule, Kind::UNSHARD)},
                        {"copies", copies_of(placement_of(schedule))},
                        {"busy", result.time.busy},
                        {"peak_live", result.time.peak_live},
                        {"activation_limit", nullptr},
                        {"generator", nullptr},
                        {"table", print(schedule)}};
  if (std::isfinite(arguments.memory_limit)) out["activation_limit"] = arguments.memory_limit;
  if (!result.generator.empty()) out["generator"] = {{"name", result.generator}, {"makespan", result.generator_time}};
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
      arguments.simulate.costs.empty() ? concat(kOwnUnit, "\n") : "", window_text(result.schedule));
}

RacedSearch predicted_search(const SearchArguments& arguments) {
  RacedSearch found;
  found.problem = problem_of(arguments, arguments.shape().actors * arguments.shape().chunks);
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

}  // namespace

namespace {

// A plain number: a limit with a unit of bytes is meant for another command.
double activation_limit(const std::string& text) {
  if (const std::optional<double> limit = parse_number<double>(text)) return *limit;
  throw Error(concat("--activation-limit ", text, ": this is no number of micro-batches' activations"),
              {parse_bytes(text) ? "a schedule counts micro-batches; how many bytes one is, a model says" : "it is a number, above 0"},
              parse_bytes(text) ? "--activation-limit 6, or penstock plan CONFIG --memory-limit 16GB" : "--activation-limit 6");
}

}  // namespace

void add_search_options(CLI::App& command, SearchArguments& arguments) {
  add_table_options(command, arguments.simulate.table);
  add_cost_options(command, arguments.simulate);
  command
      .add_option_function<std::string>(
          "--activation-limit,--memory-limit", [&arguments](const std::string& text) { arguments.memory_limit = activation_limit(text); },
          "Micro-batches' activations that an actor may hold at once: a number of micro-batches, not of bytes [unlimited]")
      ->type_name("X");
  command.add_option("--allow", arguments.allowed, "What may keep a table within the limit [what has a time]")
      ->delimiter(',')
      ->check(CLI::IsMember({"recompute", "offload", "none"}));
  add_show_flag(command, arguments.simulate.show);
  add_json_flag(command, arguments.simulate.json);
}

SearchProblem problem_of(const SearchArguments& arguments, int stages) {
  const SimulateArguments& flags = arguments.simulate;
  check_bytes(flags);
  check_size(flags.table, 4096, 1 << 14);  // takes some seconds for all named schedules
  if (!flags.costs.empty() && (flags.forward || flags.backward || flags.input || flags.weight || flags.per_stage))
    throw Error(concat("--costs ", flags.costs, " says what each stage takes"), {},
                "leave out --forward, --backward, --input, --weight and --per-stage");
  if (!(arguments.memory_limit > 0))
    throw Error(concat("--activation-limit ", number(arguments.memory_limit), ": an actor holds more than 0 activations"));
  SearchProblem problem;
  problem.actors = arguments.shape().actors;
  problem.copies = arguments.copies;
  problem.microbatches = arguments.shape().microbatches * arguments.shape().window;
  problem.steps = arguments.shape().window;
  problem.staleness = arguments.staleness;
  problem.shape = chain(stages, arguments.shape().forward_only);
  problem.memory_limit = arguments.memory_limit;
  const auto allows = [&](const char* what, bool timed) {
    return arguments.allowed.empty() ? timed
                                     : std::find(arguments.allowed.begin(), arguments.allowed.end(), what) != arguments.allowed.end();
  };
  problem.recompute = allows("recompute", flags.recompute.has_value());
  problem.offload = allows("offload", flags.offload.has_value());
  problem.sharded = flags.gather.has_value();
  problem.order_transfers = arguments.order_transfers;
  flags.costs.empty() ? set_costs(arguments, stages, problem) : set_measured_costs(arguments, stages, problem);
  return problem;
}

std::string drawing_of(const SearchArguments& arguments, const SearchProblem& problem, const Schedule& schedule) {
  const TableTime time =
      time_table(schedule, problem.shape, problem.costs, {.network = problem.network, .disturbance = {}, .record = true});
  Timeline timeline = timeline_of(schedule, problem.shape, problem.costs, time);
  timeline.seconds = !arguments.simulate.costs.empty();
  if (timeline.seconds) timeline.memory.clear();  // it counts micro-batches, but would be read as bytes
  return timeline_text({timeline}, {100, terminal_of(stdout).colour});
}

std::string time_of(const SearchArguments& arguments, double time) {
  return time_text(time, !arguments.simulate.costs.empty());
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
  command->add_option("--copies", arguments->copies, "Copies of a stage's parameters at most; 2 allows bidirectional tables")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command
      ->add_option("--staleness", arguments->staleness,
                   "Of a table for several steps: by how many updates parameters that are read may be late")
      ->capture_default_str();
  command->add_flag("--order-transfers", arguments->order_transfers,
                    "The table may say where sends and receives start, in place of as soon as they can");
  command->add_option("--seconds", arguments->seconds, "Seconds after which the search ends at the latest")->capture_default_str();
  command->add_option("--seed", arguments->seed, "Seed of the random moves")->capture_default_str();
  add_log_options(*command, race->log);
  command->add_option("--out", arguments->out, "Write the table")->type_name("FILE.csv");
  command->footer(
      "Example:\n  penstock schedule search --actors 4 --microbatches 8 --activation-limit 6 --out best.csv --show\n"
      "  penstock schedule search --microbatches 8 --costs costs.json --measure examples/gpt.toml");
  command->callback([arguments, race] { search_command(*arguments, *race); });
}

}  // namespace penstock
