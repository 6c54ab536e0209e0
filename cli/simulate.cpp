// SPDX-License-Identifier: Apache-2.0
// penstock simulate: predicts time, bubble and memory of a table or a program, without running anything.
#include "cli/simulate.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/shared_options.h"

namespace penstock {
namespace {

bool is_program(const std::string& what, const ModelRegistry& models) {
  if (names_config(what, models)) return true;
  std::error_code ignored;
  if (!names_file(what) && !std::filesystem::is_regular_file(what, ignored)) return false;
  return read_file(what).starts_with("penstock program");
}

void simulate_command(const SimulateArguments& arguments) {
  if (is_program(arguments.table.what, *arguments.models)) return simulate_program(arguments);
  simulate_table(arguments);
}

void add_share_options(CLI::App& command, SimulateArguments& arguments) {
  command.add_option("--stage-times", arguments.numbers.stage_times, "How the times of stages compare: 1,3,2 [alike]")->delimiter(',');
  command.add_option("--slice-times", arguments.numbers.slice_times, "How the times of each stage's slices compare: 1,2,3 [alike]")
      ->delimiter(',');
}

void add_disturbance_options(CLI::App& command, SimulateArguments& arguments) {
  command.add_flag("--atomic-pairs", arguments.numbers.atomic_pairs, "A fused pair begins and ends as one; else one after the other");
  CLI::Option* jitter =
      command.add_option("--jitter", arguments.numbers.jitter, "Part by which each time may be longer or shorter, drawn by --seed [0]");
  command.add_option("--seed", arguments.numbers.seed, "Seed of the jitter")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->needs(jitter);
  command.add_option("--straggler", arguments.stragglers, "Actors that are held back: 2=2, actor 2 at half its speed [none]")
      ->type_name("ACTOR=FACTOR")
      ->take_all()
      ->expected(1, -1);
}

void add_program_options(CLI::App& command, SimulateArguments& arguments) {
  command
      .add_option("--figures,--device", arguments.figures,
                  "Device whose published figures time tasks without measured costs; or a file of figures instead of the published ones")
      ->type_name("NAME|FILE.toml")
      ->allow_extra_args(false);
  command.add_option("--network", arguments.link, "Link whose published figures connect the devices")->type_name("NAME");
  begin_group(command, groups::kModel);
  command.add_option("--schedule", arguments.schedule, "Of a configuration: a schedule's name, FILE.csv or FILE.rules")
      ->type_name("SCHEDULE");
  command.add_option("--plan", arguments.plan, "Of a configuration: what penstock plan wrote")->type_name("FILE");
  CLI::Option* mesh = add_mesh_option(command, arguments.mesh);
  mesh->description("Of a configuration: " + mesh->get_description());
  add_set_option(command, arguments.settings);
  begin_group(command, groups::kWhat);
  command.add_option("--against", arguments.against, "A run's folder: its measured step beside the predicted one")->type_name("DIR");
}

}  // namespace

void add_simulate(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command = app.add_subcommand("simulate", "Predicts time, bubble and memory of a schedule or a program, without running it");
  const auto arguments = std::make_shared<SimulateArguments>();
  arguments->models = &models;
  arguments->command = command;
  begin_group(*command, groups::kWhat);
  command->add_option("WHAT", arguments->table.what, "A schedule's name, FILE.csv, FILE.rules, a program's text, or CONFIG.toml")
      ->required();
  add_table_options(*command, arguments->table);
  add_cost_options(*command, *arguments);
  add_share_options(*command, *arguments);
  add_disturbance_options(*command, *arguments);
  add_program_options(*command, *arguments);
  add_fill_options(*command, arguments->fill);
  add_show_flag(*command, arguments->show);
  add_timeline_option(*command, arguments->timeline);
  command->add_flag("--explain", arguments->explain, "Say why it takes as long as it does, and what would help most");
  add_json_flag(*command, arguments->json);
  for (const char* other : {"--show", "--explain"}) command->get_option("--against")->excludes(command->get_option(other));
  command->footer(
      "Example:\n  penstock simulate 1f1b --actors 4 --microbatches 8 --latency 0.5 --explain\n"
      "  penstock simulate examples/gpt.toml --costs costs.json --schedule zb-h1 --explain\n"
      "  penstock simulate examples/gpt.toml --costs costs.json --against runs/gpt");
  command->callback([arguments] { simulate_command(*arguments); });
}

}  // namespace penstock
