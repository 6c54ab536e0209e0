// penstock check
#include "driver/check.h"

#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/clusters.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "driver/training.h"

namespace penstock {
namespace {

struct CheckFlags {
  ConfigOptions config;
  std::string dump;
  bool json = false;
};

StateSource state_of(const CheckFlags& options, const Config& config, const Prepared& prepared, const ModelRegistry& models) {
  if (!options.config.resume.empty()) return start_from_checkpoint(config, options.config.resume, models).state;
  if (!options.config.init.empty()) return start_from_parameters(config, prepared, options.config.init).state;
  return fresh_start(config, prepared).state;
}

void print_result(const Comparison& comparison, double tolerance, bool equal, bool json) {
  if (json) {
    const nlohmann::ordered_json out = {{"loss_difference", comparison.loss_difference},
                                        {"gradient_difference", comparison.gradient_difference},
                                        {"worst", comparison.worst},
                                        {"tolerance", tolerance},
                                        {"equal", equal}};
    return print_json(out);
  }
  std::printf("loss      %.3g\ngradient  %.3g  (%s)\n%s: relative differences, at most %g allowed\n", comparison.loss_difference,
              comparison.gradient_difference, comparison.worst.c_str(), equal ? "equal" : "NOT EQUAL", tolerance);
}

void check(const CheckFlags& options, const ModelRegistry& models) {
  const Config config = load_config(options.config, models);
  const Prepared pipelined = prepare(config, models);
  const Prepared sequential = prepare_sequential(config, models, pipelined.model->equal_batches() ? step_microbatches(pipelined) : 1);
  const StateSource state = state_of(options, config, pipelined, models);
  const auto data = std::make_shared<RandomBatch>(data_of(config, *sequential.model), vocabulary_of(config));

  const std::unique_ptr<Cluster> cluster = configured_cluster("check", config, devices_of_actors(pipelined), data);
  if (cluster == nullptr) return;
  const auto step_on = [&](Cluster& devices, const Prepared& prepared) {
    Program program = compile_gradients(config, prepared);
    choose_kernels(config, program);
    devices.load(program);
    devices.set_state(state);
    return step_gradients(program, devices, prepared.parameters, config.train.seed);
  };
  const std::unique_ptr<Cluster> one = local_cluster(1, config, data);
  const StepGradients expected = step_on(*one, sequential), found = step_on(*cluster, pipelined);
  const Comparison comparison = compare(found, expected);
  if (!options.dump.empty()) dump_check(options.dump, config, pipelined, *one, *data, expected, found);

  const double tolerance = tolerance_of(config.train.dtype);
  const bool equal = comparison.loss_difference <= tolerance && comparison.gradient_difference <= tolerance;
  print_result(comparison, tolerance, equal, options.json);
  if (!equal) end_with_failure();
}

}  // namespace

void add_check(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand("check", "Compares one pipelined step with a sequential one: loss and every gradient.");
  command->footer("Example:\n  penstock check --dtype f64 --schedule interleaved-1f1b --actors 2 --chunks 2 --json");
  const auto options = std::make_shared<CheckFlags>();
  add_config_options(*command, options->config);
  command->add_option("--dump", options->dump, "writes parameters, batch, gradients and losses there")->type_name("DIR");
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->callback([options, &models] { check(*options, models); });
}

}  // namespace penstock
