// SPDX-License-Identifier: Apache-2.0
// penstock schedule search --measure: races the tables that are best by prediction in whole training steps.
#include "cli/schedule_race.h"

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/clusters.h"
#include "cli/config_options.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "profile/profile.h"
#include "report/table.h"

namespace penstock {
namespace {

void check_equal(const std::string& file, const char* key, std::int64_t there, const char* flag, std::int64_t here) {
  if (there == here) return;
  throw Error(concat(file, " has pipeline.", key, " = ", there, ", the search ", flag, " ", here), {}, concat(flag, " ", there));
}

Config config_of(const SearchArguments& arguments, const RaceArguments& race) {
  const std::string& costs = arguments.simulate.costs;
  if (costs.empty()) throw Error("--measure races the best tables for measured costs", {}, "--costs FILE, which penstock profile writes");
  const Config config =
      load_config(race.config, race.mesh.empty() ? std::vector<Override>() : std::vector{mesh_override(race.mesh)}, *race.models);
  if (!config.pipeline.plan.empty())
    throw Error(concat(race.config, " has the stages of a plan, the search those of the model"), {}, "leave out pipeline.plan");
  check_equal(race.config, "actors", config.pipeline.table.actors, "--actors", arguments.shape().actors);
  check_equal(race.config, "microbatches", config.pipeline.table.microbatches, "--microbatches", arguments.shape().microbatches);
  const std::string model = describe_model(config), measured = parse_costs(read_file(costs), costs).model;
  if (model != measured)
    throw Error(concat(costs, " was measured for another model than that of ", race.config), {measured, model},
                concat("penstock profile ", race.config, " --out FILE"));
  return config;
}

std::vector<int> chunk_counts(const SearchArguments& arguments) {
  for (const CLI::Option* flag : arguments.simulate.table.flags)
    if (flag->get_name() == "--chunks" && flag->count() > 0) return {arguments.shape().chunks};
  return {1, 2};
}

std::vector<int> groups_of(const Config& config) {
  return std::vector<int>(static_cast<std::size_t>(config.pipeline.table.actors), devices_with_members(config));
}

}  // namespace

void add_race_options(CLI::App& command, RaceArguments& race) {
  CLI::Option* measure =
      command.add_option("--measure", race.config, "With --costs: run the best tables in steps of this training, and take the fastest")
          ->type_name("CONFIG.toml");
  CLI::Option* mesh = add_mesh_option(command, race.mesh)->needs(measure);
  mesh->description("For --measure: " + mesh->get_description());
  command.add_option("--candidates", race.candidates, "Tables to run, of those found and of the named schedules each [6]")
      ->check(CLI::Range(1, 1000))
      ->needs(measure);
  command.add_option("--rounds", race.rounds, "Rounds in which each table runs once, in turn [3]")
      ->check(CLI::Range(1, 100000))
      ->needs(measure);
  command.add_option("--steps", race.steps, "Measured steps of a table in a round [8]")->check(CLI::Range(1, 100000))->needs(measure);
}

std::optional<RacedSearch> raced_search(const SearchArguments& arguments, const RaceArguments& race) {
  const Config config = config_of(arguments, race);
  const Workbench bench = workbench_of(config, *race.models);
  const std::unique_ptr<Cluster> cluster = configured_cluster("schedule search", config, groups_of(config), bench.data);
  if (cluster == nullptr) return std::nullopt;
  const StateSource state = fresh_start(config, prepare_sequential(config, *race.models)).state;
  RacedSearchOptions options;
  options.chunks = chunk_counts(arguments);
  options.search.seed = arguments.seed;
  options.search.seconds = checked("--seconds", arguments.seconds);
  options.candidates = race.candidates;
  options.race = {.rounds = race.rounds, .steps = race.steps, .restart = [&] { cluster->set_state(state); }};
  options.model = race.config;
  options.progress = [&race](const std::string& text) { race.log.say(text); };
  return raced_search([&](int chunks) { return problem_of(arguments, chunks); }, table_steps(bench, *cluster), options);
}

nlohmann::json race_json(const RacedSearch& raced) {
  nlohmann::json out = nlohmann::json::array();
  for (const Racer& racer : raced.racers) {
    nlohmann::json& row = out.emplace_back();
    row = {{"name", racer.table.found_by}, {"chunks", racer.chunks()}, {"predicted", racer.table.makespan}};
    if (racer.refused.empty()) {
      row["measured"] = racer.measured.median;
      row["spread"] = racer.measured.spread;
      row["rounds"] = racer.measured.count;
    } else {
      row["refused"] = racer.refused;
    }
  }
  return out;
}

std::string race_text(const RacedSearch& raced) {
  std::vector<std::vector<std::string>> rows;
  std::string left_out;
  for (const Racer& racer : raced.racers) {
    if (!racer.refused.empty()) {
      left_out += concat("left out: ", racer.table.found_by, ": ", racer.refused, "\n");
      continue;
    }
    const Sample& sample = racer.measured;
    rows.push_back({racer.table.found_by, concat(racer.chunks()), time_text(racer.table.makespan, true), time_text(sample.median, true),
                    concat("+- ", fixed(100 * sample.spread / sample.median, 1), " %"), concat(sample.count)});
  }
  for (const std::string& what : raced.unsearched) left_out += concat("left out: ", what, "\n");
  return table({"", "chunks", "predicted", "measured", "", "rounds"}, rows) + left_out;
}

}  // namespace penstock
