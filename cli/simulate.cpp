// penstock simulate: predicts time, bubble and memory of a table or a program, without running anything.
#include "cli/simulate.h"

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/config_options.h"

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
  command.add_option("--stage-times", arguments.stage_times, "how the times of stages compare: 1,3,2 [alike]")->delimiter(',');
  command.add_option("--slice-times", arguments.slice_times, "how the times of each stage's slices compare [alike]")->delimiter(',');
}

void add_disturbance_options(CLI::App& command, SimulateArguments& arguments) {
  command.add_flag("--atomic-pairs", arguments.atomic_pairs, "a fused pair begins and ends as one; else one after the other");
  command.add_option("--jitter", arguments.jitter, "each time is up to this part longer or shorter, by --seed [0]");
  command.add_option("--seed", arguments.seed, "of the jitter")->check(CLI::NonNegativeNumber)->capture_default_str();
  command.add_option("--straggler", arguments.stragglers, "actor 2 at half its speed: 2=2")
      ->type_name("ACTOR=FACTOR")
      ->take_all()
      ->expected(1, -1);
}

void add_program_options(CLI::App& command, SimulateArguments& arguments) {
  command
      .add_option("--figures", arguments.figures,
                  "published figures of this device for tasks without measured costs; or a file of figures instead of the published ones")
      ->type_name("NAME|FILE.toml")
      ->allow_extra_args(false);
  command.add_option("--device", arguments.figures, "what --figures NAME was called")->group("")->allow_extra_args(false);
  command.add_option("--network", arguments.link, "published figures of this link");
  command.add_option("--schedule", arguments.schedule, "of a configuration: NAME, FILE.csv or FILE.rules");
  command.add_option("--plan", arguments.plan, "of a configuration: FILE that penstock plan wrote");
  CLI::Option* mesh = add_mesh_option(command, arguments.mesh);
  mesh->description("of a configuration: " + mesh->get_description());
  command.add_option("--set", arguments.settings, "overrides one key of a configuration: --set model.width=256")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->expected(1, -1);
  command.add_option("--against", arguments.against, "a run's folder: its measured step beside the predicted one")->type_name("DIR");
}

}  // namespace

void add_simulate(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command = app.add_subcommand("simulate", "time, bubble and memory of a schedule or a program, without running it");
  const auto arguments = std::make_shared<SimulateArguments>();
  arguments->models = &models;
  command->add_option("what", arguments->table.what, "a schedule's name, FILE.csv, FILE.rules, a program's text, or CONFIG.toml")
      ->required();
  add_table_options(*command, arguments->table);
  add_cost_options(*command, *arguments);
  add_share_options(*command, *arguments);
  add_disturbance_options(*command, *arguments);
  add_program_options(*command, *arguments);
  add_fill_options(*command, arguments->fill);
  command->add_flag("--show", arguments->show, "draw it on the terminal");
  command->add_option("--timeline", arguments->timeline, "write it for penstock show, Perfetto and chrome://tracing")
      ->type_name("FILE.json");
  command->add_flag("--explain", arguments->explain, "why it takes as long as it does, and what would help most");
  command->add_flag("--json", arguments->json, "one JSON object");
  command->footer(
      "Example:\n  penstock simulate 1f1b --actors 4 --microbatches 8 --latency 0.5 --explain\n"
      "  penstock simulate examples/gpt.toml --costs costs.json --schedule zb-h1 --explain\n"
      "  penstock simulate examples/gpt.toml --costs costs.json --against runs/gpt");
  command->callback([arguments] { simulate_command(*arguments); });
}

}  // namespace penstock
