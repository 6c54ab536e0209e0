// penstock compile
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "config/compile.h"
#include "lower/passes.h"
#include "penstock/error.h"
#include "penstock/graph.h"

namespace penstock {
namespace {

struct CompileFlags {
  ConfigOptions config;
  std::string form = "program";
  std::string after;        // a pass; empty: the last
  std::string dump_passes;  // a folder; empty: none
  bool json = false;
};

std::string draft_text(const CompileFlags& options, const LowerInput& input) {
  Draft draft;
  run_passes(input, draft, options.after);
  return print(draft);
}

std::string emit(const CompileFlags& options, const ModelRegistry& models) {
  if (!options.after.empty()) {
    if (options.form != "draft") throw Error("--after names a pass of lowering, which leaves a draft", {}, "add --emit draft");
    find_pass(options.after);  // before the model is traced
  }
  const Config config = load_config(options.config, models);
  const Prepared prepared = prepare(config, models);
  if (!options.dump_passes.empty()) dump_passes(training_input(config, prepared), options.dump_passes);
  if (options.form == "draft") return draft_text(options, training_input(config, prepared));
  if (options.form == "schedule") return print(prepared.schedule);
  if (options.form == "graph") return print(training_graph(config, prepared));
  if (options.form == "layouts") return layouts_text(config, prepared);
  if (options.form == "stages") return stages_text(config, prepared);
  Program program = compile_training(config, prepared);
  choose_kernels(config, program);
  return print(program);
}

}  // namespace

void add_compile(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("compile", "Prints an intermediate form of a training step as text.");
  command->footer("Example:\n  penstock compile --emit program --schedule zb-h1 --actors 2 --microbatches 4");
  const auto options = std::make_shared<CompileFlags>();
  add_config_options(*command, options->config);
  command->add_option("--emit", options->form, "graph, layouts, stages, schedule, draft or program")
      ->check(CLI::IsMember({"graph", "layouts", "stages", "schedule", "draft", "program"}));
  command->add_option("--after", options->after, "--emit draft: the pass of lowering whose draft is printed; the last if not given");
  command->add_option("--dump-passes", options->dump_passes, "also write the draft that each pass of lowering leaves into this folder");
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->callback([options, &models] {
    const std::string text = emit(*options, models);
    if (options->json) return print_json(nlohmann::ordered_json{{"form", options->form}, {"text", text}});
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace penstock
