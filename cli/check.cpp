// penstock check
#include "driver/check.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "cli/backend.h"
#include "cli/clusters.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "driver/check_window.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "schedule/in_one_row.h"

namespace penstock {
namespace {

struct CheckFlags {
  ConfigOptions config;
  std::string dump;
  bool json = false;
};

StateSource state_of(const CheckFlags& options, const Config& config, const Prepared& prepared, const ModelRegistry& models) {
  if (!options.config.resume.empty()) return start_from_checkpoint(config, options.config.resume, models).state;
  if (!options.config.init.empty()) return start_from_parameters(config, prepared, begin_of(options.config), models).state;
  return fresh_start(config, prepared).state;
}

// Makes a program ready to run from this state.
Program made_ready(Program program, const Config& config, const StateSource& state, Cluster& devices) {
  choose_kernels(config, program);
  devices.load(program);
  devices.set_state(state);
  return program;
}

// `what`: is compared beside the loss, "gradient" or "parameter".
void print_result(const std::string& what, const Comparison& comparison, double tolerance, bool json) {
  const bool equal = comparison.loss_difference <= tolerance && comparison.gradient_difference <= tolerance;
  if (json) {
    const nlohmann::ordered_json out = {{"loss_difference", comparison.loss_difference},
                                        {what + "_difference", comparison.gradient_difference},
                                        {"worst", comparison.worst},
                                        {"tolerance", tolerance},
                                        {"equal", equal}};
    print_json(out);
  } else {
    std::printf("%-9s %.3g\n%-9s %.3g  (%s)\n%s: relative differences, at most %g allowed\n", "loss", comparison.loss_difference,
                what.c_str(), comparison.gradient_difference, comparison.worst.c_str(), equal ? "equal" : "NOT EQUAL", tolerance);
  }
  if (!equal) end_with_failure();
}

// A window of steps: the pipelined table beside its own actions in one row, of each worker where actors have workers. Where actors are
// single devices otherwise, and no two add up a parameter's gradient, both must have the same bits.
void check_window(const CheckFlags& options, const Config& config, const Prepared& pipelined, const ModelRegistry& models) {
  if (!options.dump.empty())
    throw Error(concat("--dump writes the gradients of one step, and the table is for ", pipelined.schedule.steps, " steps"), {},
                "leave out --dump or --window");
  const bool has_workers = config.pipeline.distance >= 0;
  Config plain = config;
  plain.pipeline.prefetch = false;
  Prepared in_row = prepare(plain, in_one_row(pipelined.schedule, chain_of(pipelined.schedule)), pipelined.microbatches, models);
  if (has_workers) spread_actors(plain, in_row);
  const StateSource state = state_of(options, config, pipelined, models);
  const auto data = std::make_shared<RandomBatch>(data_of(config, *in_row.model), vocabulary_of(config));
  const std::vector<int> counts = devices_of_actors(pipelined);
  const std::unique_ptr<Cluster> cluster = configured_cluster("check", config, counts, data);
  if (cluster == nullptr) return;
  const std::unique_ptr<Cluster> one = local_cluster(devices_of_actors(in_row)[0], config, data);
  const auto made = [&](Cluster& devices, const Prepared& prepared, const Config& own) {
    return made_ready(compile_training(own, prepared), own, state, devices);
  };
  const Program program = made(*cluster, pipelined, config), row = made(*one, in_row, plain);
  // Three or more processes, and workers whose stages lie differently, add up what each has in another order.
  const bool alike = (config.pipeline.backend == "threads" && pipelined.others.empty()) || pipelined.replicas[0] < 3;
  // Two backbones on different actors each add up a loss of their own.
  const bool is_single = std::ranges::max(counts) == 1 && !has_trained_copies(program, pipelined) && pipelined.schedule.chains == 1;
  const bool is_exact = has_workers ? alike : is_single;
  const WindowEnd expected = run_window(row, *one, in_row, plain), found = run_window(program, *cluster, pipelined, config);
  print_result("parameter", compare(found, expected), is_exact ? 0 : tolerance_of(config.train.dtype), options.json);
}

// "penstock check zb-h1" checks that schedule under the default configuration.
ConfigOptions with_schedule(ConfigOptions options) {
  if (options.file.empty() || std::filesystem::exists(options.file)) return options;
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedules()) names.push_back(info.name);
  if (std::ranges::find(names, options.file) != names.end())
    options.flags.try_emplace("--schedule", std::exchange(options.file, ""));
  else if (const std::string near = did_you_mean(options.file, names); !near.empty())
    throw Error(concat("there is no file and no schedule ", quote(options.file)), {}, near);
  return options;
}

void check(const CheckFlags& options, const ModelRegistry& models) {
  const std::future<void> loading = load_backend();
  const Config config = load_config(with_schedule(options.config), models);
  const Prepared pipelined = prepare(config, models);
  if (pipelined.schedule.steps > 1) return check_window(options, config, pipelined, models);
  const Prepared sequential = prepare_sequential(config, models, pipelined.model->equal_batches() ? step_microbatches(pipelined) : 1);
  const StateSource state = state_of(options, config, pipelined, models);
  const auto data = std::make_shared<RandomBatch>(data_of(config, *sequential.model), vocabulary_of(config));

  const std::unique_ptr<Cluster> cluster = configured_cluster("check", config, devices_of_actors(pipelined), data);
  if (cluster == nullptr) return;
  const auto step_on = [&](Cluster& devices, const Prepared& prepared) {
    const Program program = made_ready(compile_gradients(config, prepared), config, state, devices);
    return step_gradients(program, devices, prepared.parameters, config.train.seed);
  };
  const std::unique_ptr<Cluster> one = local_cluster(1, config, data);
  const StepGradients expected = step_on(*one, sequential), found = step_on(*cluster, pipelined);
  const Comparison comparison = compare(found, expected);
  if (!options.dump.empty()) dump_check(options.dump, config, pipelined, *one, *data, expected, found);
  print_result("gradient", comparison, tolerance_of(config.train.dtype), options.json);
}

}  // namespace

void add_check(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command =
      program.add_subcommand("check", "Compares one pipelined step with a sequential one: loss and every gradient; or a window of steps.");
  command->footer(
      "Example:\n  penstock check --schedule slimpipe --slices 4 --dtype f64\n  penstock check --dtype f64 --schedule interleaved-1f1b "
      "--actors 2 "
      "--chunks 2 --json");
  const auto options = std::make_shared<CheckFlags>();
  add_config_options(*command, options->config);
  command->add_option("--dump", options->dump, "writes parameters, batch, gradients and losses there")->type_name("DIR");
  command->add_flag("--json", options->json, "one JSON object on standard output");
  command->get_option("CONFIG")->description("TOML file, or a schedule's name; every key has a default");
  command->callback([options, &models] { check(*options, models); });
}

}  // namespace penstock
