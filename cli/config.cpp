// SPDX-License-Identifier: Apache-2.0
// penstock config: prints every key of a configuration with its meaning.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/config_options.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "config/config_text.h"

namespace penstock {
namespace {

struct ConfigFlags {
  ConfigOptions config;
  bool json = false;
};

nlohmann::ordered_json json_of(const Config& config, const ModelRegistry& models) {
  nlohmann::ordered_json out = {{"keys", nlohmann::ordered_json::array()}};
  for (const KeyLine& line : key_lines(config, models))
    out["keys"].push_back({{"key", line.section + "." + line.name},
                           {"value", nlohmann::ordered_json::parse(line.value)},
                           {"default", nlohmann::ordered_json::parse(line.fallback)},
                           {"unit", line.unit},
                           {"meaning", line.meaning},
                           {"given", line.given}});
  return out;
}

void show_config(const ConfigFlags& options, const ModelRegistry& models) {
  const Config config = load_config(options.config, models);
  if (options.json) return print_json(json_of(config, models));
  std::printf("%s", explained(config, models).c_str());
}

}  // namespace

void add_config(CLI::App& program, const ModelRegistry& models) {
  CLI::App* command = program.add_subcommand(
      "config", "Prints every key of a configuration with its value, meaning, unit and [default]: a file that train takes");
  command->footer(
      "Example:\n  penstock config examples/gpt.toml --set model.width=256 > mine.toml\n"
      "  penstock config --set name=t5");
  const auto options = std::make_shared<ConfigFlags>();
  add_config_options(*command, options->config);
  add_json_flag(*command, options->json);
  command->callback([options, &models] { show_config(*options, models); });
}

}  // namespace penstock
