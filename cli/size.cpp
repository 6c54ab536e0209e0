// SPDX-License-Identifier: Apache-2.0
// penstock size: how many GPUs and parameter servers, by figures that are given, or that a run or a profile says.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "config/compile.h"
#include "cost/sizing.h"
#include "penstock/error.h"
#include "penstock/predict.h"
#include "report/timeline_json.h"

namespace penstock {
namespace {

struct SizeArguments {
  std::optional<double> overhead, alpha, parameters, bandwidth, compute;
  bool parameters_unit = false, bandwidth_unit = false;  // whether they were given with one
  std::optional<int> gpus, workers;
  std::string config, costs, run;
  std::vector<std::string> settings;
  bool json = false;
};

struct Answer {
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  std::string text;

  void add(const char* name, const nlohmann::ordered_json& value, const std::string& how) {
    values[name] = value;
    text += concat(name, std::string(24 - std::string_view(name).size(), ' '), value.dump(), "   ", how, "\n");
  }
};

double rounded(double value) {
  return std::stod(short_decimal(value, 6));
}

Timeline predicted_step(const Config& config, const Prepared& prepared, const std::string& file) {
  Program program = compile_training(config, prepared);
  choose_kernels(config, program);
  Prediction step = predict(program, parse_costs(read_file(file), file), config.pipeline.backend, file);
  step.timeline.makespan = step.seconds;  // with what a step takes beyond its devices' work
  return std::move(step.timeline);
}

// Sets what is asked for, and not given, as the run measured it or its configuration's costs say.
void take_figures(SizeArguments& given, const ModelRegistry& models, Answer& out) {
  const std::filesystem::path run = given.run;
  std::vector<Override> overrides;
  for (const std::string& setting : given.settings) overrides.push_back(parse_override(setting));
  const Config config = load_config(given.run.empty() ? given.config : (run / "config.toml").string(), overrides, models);
  const Prepared prepared = prepare(config, models);
  const std::string file = (run / "timeline.json").string();
  const Timeline step = given.run.empty() ? predicted_step(config, prepared, given.costs) : parse_timeline(read_file(file), file);
  const StepFigures figures = figures_of(step, prepared.schedule.steps);
  double parameters = 0;
  for (const ParameterSpec& parameter : prepared.parameters)
    if (parameter.trained) parameters += static_cast<double>(parameter.type.bytes());
  out.add("compute", figures.compute, "T: seconds of a step that a device computes");
  out.add("overhead", figures.overhead, concat("R: ", step.devices.size(), " devices take 1 + G R times that"));
  out.add("parameters", parameters, "S: bytes of those that are trained");
  if (!given.overhead && (given.gpus || given.alpha)) given.overhead = figures.overhead;
  if (!given.workers && !given.bandwidth) return;
  given.parameters = given.parameters.value_or(parameters);
  given.compute = given.compute.value_or(figures.compute);
}

// Throws Error unless there are figures of one kind at most, a run's, or those of a configuration and its costs; and those that are given
// have one unit.
void check_source(const SizeArguments& given) {
  if (!given.run.empty() && (!given.config.empty() || !given.costs.empty() || !given.settings.empty()))
    throw Error("--run has a run's own configuration and times", {}, "leave out CONFIG, --set and --costs, or --run");
  if (given.parameters && given.bandwidth && given.parameters_unit != given.bandwidth_unit)
    throw Error(concat("one of --parameters and --bandwidth has a unit, and the other has none"), {},
                "give both one, as --parameters 100MB --bandwidth 1.25GB/s, or none");
  if (!given.costs.empty() && given.config.empty())
    throw Error(concat("--costs ", given.costs, " says what a configuration's tasks take, and none is given"), {},
                concat("penstock size CONFIG.toml --costs ", given.costs));
  if (given.costs.empty() && (!given.config.empty() || !given.settings.empty()))
    throw Error("how long do the configuration's tasks take?", {}, "--costs FILE, which penstock profile CONFIG --out FILE measures");
}

void size_gpus(const SizeArguments& given, Answer& out) {
  const double overhead = *given.overhead;
  if (!given.gpus && !given.alpha)
    throw Error("--overhead alone says nothing", {}, "add --gpus for their efficiency, or --alpha for the most GPUs that reach it");
  if (given.gpus) {
    out.add("efficiency", rounded(gpu_efficiency(overhead, *given.gpus)), "(1 + R) / (1 + G R)");
    out.add("simulated_efficiency", rounded(simulated_efficiency(overhead, *given.gpus)),
            "a table of G that share what the overhead takes");
  }
  if (!given.alpha) return;
  const int most = most_gpus(overhead, *given.alpha);
  out.add("most_gpus", most, "G <= (1 + R - alpha) / (alpha R)");
}

void size_servers(const SizeArguments& given, Answer& out) {
  const ParameterTraffic traffic{*given.parameters, *given.workers, *given.bandwidth, *given.compute};
  const int servers = parameter_servers(traffic);
  out.add("servers", servers, "2 S N / (B T), rounded up");
  out.add("exposed_seconds", rounded(exposed_traffic(traffic, servers)), "a step beyond its computing, simulated");
  if (servers > 1) out.add("exposed_with_one_fewer", rounded(exposed_traffic(traffic, servers - 1)), "the same with a server less");
}

void size(SizeArguments given, const ModelRegistry& models) {
  check_source(given);
  Answer out;
  const bool is_measured = !given.run.empty() || !given.costs.empty();
  if (is_measured) take_figures(given, models, out);
  const int of_servers = given.parameters.has_value() + given.workers.has_value() + given.bandwidth.has_value() + given.compute.has_value();
  if (!given.overhead && (given.gpus || given.alpha)) throw Error("--gpus and --alpha need --overhead", {}, "add --overhead");
  if (!given.overhead && of_servers == 0 && !is_measured)
    throw Error(
        "nothing is given", {},
        "--run, or a configuration with --costs; --overhead with --gpus or --alpha; or --parameters, --workers, --bandwidth and --compute");
  if (of_servers != 0 && of_servers != 4)
    throw Error(concat("servers follow from four figures, and ", of_servers, of_servers == 1 ? " is given" : " are given"), {},
                concat("give all of --parameters, --workers, --bandwidth and --compute", is_measured ? "; the run says the others" : ""));
  if (given.overhead) size_gpus(given, out);
  if (of_servers == 4) size_servers(given, out);
  if (given.json)
    print_json(out.values);
  else
    std::cout << out.text;
}

}  // namespace

void add_size(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command = app.add_subcommand("size", "Says how many GPUs a job is worth, and how many parameter servers it needs (1709.06622)");
  const auto given = std::make_shared<SizeArguments>();
  begin_group(*command, groups::kWhat);
  command->add_option("CONFIG", given->config, "With --costs: R, S and T are those of its step");
  command->add_option("--costs", given->costs, "What penstock profile measured of its tasks")->type_name("FILE");
  add_set_option(*command, given->settings);
  command->add_option("--run", given->run, "R, S and T are those of the step that a run measured")->type_name("DIR");
  command->option_defaults()->group("GPUs");
  command->add_option("--overhead", given->overhead, "R: what a GPU adds to a mini-batch by sending and waiting, over its computing");
  command->add_option("--gpus", given->gpus, "G: GPUs, for their efficiency");
  command->add_option("--alpha", given->alpha, "An efficiency, from 0 to 1: for the most GPUs that reach it");
  command->option_defaults()->group("Parameter servers");
  const auto parameters = [given](const Amount& amount) {
    given->parameters = amount.value;
    given->parameters_unit = amount.has_unit;
  };
  const auto bandwidth = [given](const Amount& amount) {
    given->bandwidth = amount.value;
    given->bandwidth_unit = amount.has_unit;
  };
  add_amount_option(*command, "--parameters", Quantity::bytes, parameters, "S: size of the parameters, in any unit of bytes");
  command->add_option("--workers", given->workers, "N: workers that compute");
  add_amount_option(*command, "--bandwidth", Quantity::bytes_per_second, bandwidth,
                    "B: bandwidth of a server, in that unit per second; a run's parameters are in bytes");
  add_amount_option(
      *command, "--compute", Quantity::seconds, [given](const Amount& amount) { given->compute = amount.value; },
      "T: seconds that a worker computes for each mini-batch");
  add_json_flag(*command, given->json);
  command->footer(
      "Example:\n  penstock size --overhead 0.1 --gpus 4 --alpha 0.8\n"
      "  penstock size --parameters 0.1 --workers 8 --bandwidth 1.25 --compute 0.5\n"
      "  penstock size --run runs/gpt --gpus 8 --alpha 0.8 --workers 8 --bandwidth 1.25e9\n"
      "  penstock size examples/gpt.toml --costs costs.json --gpus 8");
  command->callback([given, &models] { size(*given, models); });
}

}  // namespace penstock
