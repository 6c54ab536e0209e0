// SPDX-License-Identifier: Apache-2.0
// penstock check
#include "driver/check_configuration.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/papers.h"
#include "base/text.h"
#include "cli/backend.h"
#include "cli/clusters.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct CheckFlags {
  ConfigOptions config;
  std::string dump;
  bool json = false;
};

void print_result(const CheckResult& result, bool json) {
  const Comparison& comparison = result.comparison;
  const char* what = result.compared.c_str();
  if (json) {
    print_json(nlohmann::ordered_json{{"loss_difference", comparison.loss_difference},
                                      {result.compared + "_difference", comparison.gradient_difference},
                                      {"worst", comparison.worst},
                                      {"tolerance", result.tolerance},
                                      {"equal", result.is_equal()}});
  } else {
    std::printf("%-9s %.3g\n%-9s %.3g  (%s)\n%s: relative differences, at most %g allowed\n", "loss", comparison.loss_difference, what,
                comparison.gradient_difference, comparison.worst.c_str(), result.is_equal() ? "equal" : "NOT EQUAL", result.tolerance);
  }
  if (!result.is_equal()) end_with_failure();
}

// "penstock check zb-h1" checks that schedule under the default configuration.
ConfigOptions with_schedule(ConfigOptions options) {
  if (options.file.empty() || std::filesystem::exists(options.file)) return options;
  std::vector<std::string> names;
  for (const ScheduleInfo& info : schedules()) names.push_back(info.name);
  if (std::ranges::find(names, options.file) != names.end())
    options.flags.try_emplace("--schedule", std::exchange(options.file, ""));
  else if (const std::string near = hint_for(options.file, names); !near.empty())
    throw Error(concat("there is no file and no schedule ", quote(options.file)), {}, near);
  return options;
}

void check(const CheckFlags& options, const ModelRegistry& models) {
  const Config config = load_config(with_schedule(options.config), models);
  const std::future<void> loading = load_backend();
  const std::optional<CheckResult> result = check_configuration({
      .config = config,
      .models = models,
      .start = [&](const Prepared& prepared) { return start_of(options.config, config, prepared, models); },
      .cluster = [&](const std::vector<int>& groups,
                     std::shared_ptr<const DataSource> data) { return configured_cluster("check", config, groups, std::move(data)); },
      .local = [&](int devices, std::shared_ptr<const DataSource> data) { return local_cluster(devices, config, std::move(data)); },
      .choose_kernels = [&](Program& program) { choose_kernels(config, program); },
      .dump = options.dump,
  });
  if (result) print_result(*result, options.json);
}

}  // namespace

void add_check(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command =
      program.add_subcommand("check",
                             "Compares the step that train would do next with a sequential one: the loss and every gradient, or a "
                             "window of steps, on the data that are named and on drawn ones");
  command->footer(
      "Example:\n  penstock check --schedule slimpipe --slices 4 --dtype f64\n  penstock check --dtype f64 --schedule interleaved-1f1b "
      "--actors 2 --chunks 2 --json");
  const auto options = std::make_shared<CheckFlags>();
  add_config_options(*command, options->config);
  begin_group(*command, groups::kOutput);
  command->add_option("--dump", options->dump, "Write parameters, batch, gradients and losses there")->type_name("DIR");
  add_json_flag(*command, options->json);
  command->get_option("CONFIG")->description("TOML file, or a schedule's name; every key has a default (penstock config)");
  command->callback([options, &models] { check(*options, models); });
}

}  // namespace penstock
