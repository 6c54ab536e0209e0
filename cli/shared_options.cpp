// SPDX-License-Identifier: Apache-2.0
#include "cli/shared_options.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "base/bytes.h"
#include "base/text.h"
#include "cli/command_tree.h"
#include "penstock/error.h"

namespace penstock {

void add_json_flag(CLI::App& command, bool& json) {
  begin_group(command, groups::kOutput);
  command.add_flag("--json", json, "One JSON object on standard output, and nothing else there");
}

void add_show_flag(CLI::App& command, bool& show) {
  begin_group(command, groups::kOutput);
  command.add_flag("--show", show, "Draw it over time on the terminal");
}

void add_timeline_option(CLI::App& command, std::string& timeline) {
  begin_group(command, groups::kOutput);
  command.add_option("--timeline", timeline, "Write the timeline, for penstock show, Perfetto and chrome://tracing")
      ->type_name("FILE.json");
}

void add_set_option(CLI::App& command, std::vector<std::string>& settings) {
  command.add_option("--set", settings, "Set a key of the configuration (penstock config): --set train.clip=0.5")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->expected(1, -1);
}

CLI::Option* add_bytes_option(CLI::App& command, const std::string& names, std::function<void(double)> take, const std::string& meaning) {
  const std::string name = names.substr(0, names.find(','));
  const CLI::callback_t read = [name, take = std::move(take)](const CLI::results_t& texts) {
    const std::optional<double> bytes = parse_bytes(texts.back());
    if (!bytes) return false;  // which is wrong usage
    if (!(*bytes > 0)) throw Error(concat(name, " ", texts.back(), ": it must be above 0"), {}, concat(name, " 16GB"));
    take(*bytes);
    return true;
  };
  return command.add_option(names, read, meaning)->type_name("BYTES");
}

}  // namespace penstock
