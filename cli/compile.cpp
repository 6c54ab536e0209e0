// penstock compile
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "config/compile.h"
#include "penstock/graph.h"

namespace penstock {
namespace {

struct Options {
  ConfigOptions config;
  std::string form = "program";
  bool json = false;
};

std::string emit(const Options& options, const ModelRegistry& models) {
  const Config config = load_config(options.config, models);
  const Prepared prepared = prepare(config, models);
  if (options.form == "schedule") return print(prepared.schedule);
  if (options.form == "graph") return print(training_graph(config, prepared));
  if (options.form == "stages") return stages_text(config, prepared);
  Program program = compile_training(config, prepared);
  choose_kernels(config, program);
  return print(program);
}

}  // namespace

void add_compile(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("compile", "Prints an intermediate form of a training step as text.");
  command->footer("Example:\n  penstock compile --emit program --schedule zb-h1 --actors 2 --microbatches 4");
  const auto options = std::make_shared<Options>();
  add_config_options(*command, options->config);
  command->add_option("--emit", options->form, "graph, stages, schedule or program")
      ->check(CLI::IsMember({"graph", "stages", "schedule", "program"}));
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->callback([options, &models] {
    const std::string text = emit(*options, models);
    if (options->json) return print_json(nlohmann::ordered_json{{"form", options->form}, {"text", text}});
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace penstock
