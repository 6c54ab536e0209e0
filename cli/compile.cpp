// SPDX-License-Identifier: Apache-2.0
// penstock compile
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/mesh.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "config/compile.h"
#include "config/mesh_view.h"
#include "driver/memory_check.h"
#include "lower/member_inputs.h"
#include "lower/passes.h"
#include "penstock/error.h"
#include "penstock/graph.h"
#include "report/layout_costs.h"

namespace penstock {
namespace {

struct CompileFlags {
  ConfigOptions config;
  std::string form = "program";
  std::string after;        // a pass; empty: the last
  std::string dump_passes;  // a folder; empty: none
  std::int64_t memory_limit = -1;
  bool explain = false, json = false;
};

std::string drafts_text(const CompileFlags& options, Lowering lowering) {
  run_passes(lowering, options.after);
  return print(lowering);
}

// The program of the step as it would run. Throws Error where a device needs more than the limit.
Program program_for(const CompileFlags& options, const Config& config, const Prepared& prepared) {
  Program program = compile_training(config, prepared);
  choose_kernels(config, program);
  if (options.memory_limit >= 0) check_limit(program, options.memory_limit);
  return program;
}

std::string emit(const CompileFlags& options, const ModelRegistry& models) {
  if (!options.after.empty()) {
    if (options.form != "draft") throw Error("--after names a pass of lowering, which leaves a draft", {}, "add --emit draft");
    find_pass(options.after);  // before the model is traced
  }
  const Config config = load_config(options.config, models);
  const Prepared prepared = prepare(config, models);
  say_sizes(prepared, options.config.log);
  if (!options.dump_passes.empty()) dump_passes(training_lowering(config, prepared), options.dump_passes);
  if (options.memory_limit >= 0 && options.form != "program")
    throw Error(concat("--memory-limit is for programs, not for --emit ", options.form), {}, "--emit program, or --explain");
  if (options.form == "draft") return drafts_text(options, training_lowering(config, prepared));
  if (options.form == "schedule") return print(prepared.schedule);
  if (options.form == "graph") return print(training_graph(config, prepared));
  if (options.form == "layouts") return layouts_text(training_layouts(config, prepared));
  if (options.form == "stages") return stages_text(config, prepared);
  return print(program_for(options, config, prepared));
}

nlohmann::ordered_json json_of(const StageConversions& stage) {
  nlohmann::ordered_json out = {{"bytes", stage.bytes}, {"slices", stage.slices}, {"conversions", nlohmann::ordered_json::array()}};
  for (const ConversionCost& c : stage.conversions)
    out["conversions"].push_back({{"conversion", c.conversion},
                                  {"value", c.value},
                                  {"from", c.from},
                                  {"to", c.to},
                                  {"for", c.why},
                                  {"readers", c.readers},
                                  {"bytes", c.bytes}});
  return out;
}

nlohmann::ordered_json json_of(const ChosenLayouts& chosen) {
  nlohmann::ordered_json out = {{"axis", chosen.axis},
                                {"split", nlohmann::ordered_json::array()},
                                {"step_bytes", chosen.choice.score.bytes},
                                {"conversions", chosen.choice.score.conversions}};
  for (const LayoutClass& found : chosen.choice.classes) out["split"].push_back(class_name(found));
  return out;
}

nlohmann::ordered_json json_of(const std::vector<AxisConversions>& axes, const std::vector<AxisTraffic>& traffic) {
  nlohmann::ordered_json out = {{"axes", nlohmann::ordered_json::array()}, {"step", nlohmann::ordered_json::array()}};
  for (const AxisConversions& axis : axes) {
    nlohmann::ordered_json& one = out["axes"].emplace_back(nlohmann::ordered_json{{"axis", axis.axis},
                                                                                  {"members", axis.members},
                                                                                  {"own", axis.own},
                                                                                  {"microbatch_bytes", axis.bytes},
                                                                                  {"stages", nlohmann::json::object()}});
    for (const StageConversions& stage : axis.stages) one["stages"][stage.stage] = json_of(stage);
    one["once"] = json_of(axis.once);
  }
  for (const AxisTraffic& axis : traffic) out["step"].push_back(json_of(axis));
  return out;
}

// Each conversion between layouts, why it is there and what it sends; and what the program sends in a step along each axis.
void explain_layouts(const CompileFlags& options, const ModelRegistry& models) {
  if (options.form != "program") throw Error(concat("--explain and --emit ", options.form), {}, "--explain stands in place of a form");
  const Config config = load_config(options.config, models);
  const Prepared prepared = prepare(config, models);
  const std::vector<AxisConversions> axes = layout_costs(training_layouts(config, prepared));
  const MeshShape mesh = mesh_of(config, prepared);
  const ClusterSpec cluster = uniform_cluster(static_cast<int>(mesh.devices.size()), ClusterLink().bandwidth);
  const std::vector<AxisTraffic> traffic = traffic_of(program_for(options, config, prepared), mesh, cluster);
  if (options.json) {
    nlohmann::ordered_json out = json_of(axes, traffic);
    for (const ChosenLayouts& chosen : prepared.choices) out["chosen"].push_back(json_of(chosen));
    return print_json(out);
  }
  std::fputs(concat(text_of(axes), prepared.choices.empty() ? "" : "\n", text_of(prepared.choices), "\na step of ",
                    step_microbatches(prepared), " micro-batches on the mesh ", text_of(mesh), "\n", traffic_text(traffic, cluster))
                 .c_str(),
             stdout);
}

}  // namespace

void add_compile(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("compile", "Prints an intermediate form of a training step as text");
  command->footer(
      "Example:\n  penstock compile --emit program --schedule zb-h1 --actors 2 --microbatches 4\n"
      "  penstock compile --mesh pipe=2,tensor=2 --explain");
  const auto options = std::make_shared<CompileFlags>();
  add_config_options(*command, options->config);
  begin_group(*command, groups::kOutput);
  command->add_option("--emit", options->form, "The form that is printed [program]")
      ->check(CLI::IsMember({"graph", "layouts", "stages", "schedule", "draft", "program"}));
  command->add_option("--after", options->after, "With --emit draft: the pass of lowering whose draft is printed [the last]");
  command->add_option("--dump-passes", options->dump_passes, "Also write the draft that each pass of lowering leaves into this folder")
      ->type_name("DIR");
  begin_group(*command, groups::kWhere);
  add_positive_option(
      *command, "--memory-limit,--memory", Quantity::bytes,
      [options](double bytes) { options->memory_limit = static_cast<std::int64_t>(bytes); }, "Memory that a device may use [unlimited]");
  begin_group(*command, groups::kOutput);
  command->add_flag("--explain", options->explain,
                    "Instead of a form: each conversion between layouts, why it is there and what it sends, by stage and along each axis");
  add_json_flag(*command, options->json);
  command->callback([options, &models] {
    if (options->explain) return explain_layouts(*options, models);
    const std::string text = emit(*options, models);
    if (options->json) return print_json(nlohmann::ordered_json{{"form", options->form}, {"text", text}});
    std::fputs(text.c_str(), stdout);
  });
}

}  // namespace penstock
