// SPDX-License-Identifier: Apache-2.0
#include "cli/shared_options.h"

#include <CLI/CLI.hpp>
#include <utility>

#include "base/text.h"
#include "cli/command_tree.h"
#include "penstock/error.h"

namespace penstock {

void add_json_flag(CLI::App& command, bool& json) {
  begin_group(command, groups::kOutput);
  CLI::Option* flag = command.add_flag("--json", json, "One JSON object on standard output, and nothing else there");
  if (CLI::Option* show = command.get_option_no_throw("--show")) flag->excludes(show);
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

namespace {

const char* type_of(Quantity quantity) {
  if (quantity == Quantity::seconds) return "TIME";
  return quantity == Quantity::bytes ? "BYTES" : "BYTES/S";
}

// The meaning with an example of a unit ahead of the default: "..., as 16GB or 512MiB [unlimited]".
std::string with_example(const std::string& meaning, Quantity quantity) {
  const std::size_t end = meaning.ends_with("]") ? meaning.rfind(" [") : meaning.size();
  return concat(meaning.substr(0, end), ", as ", examples_of(quantity), meaning.substr(end));
}

}  // namespace

CLI::Option* add_amount_option(CLI::App& command, const std::string& names, Quantity quantity, std::function<void(Amount)> take,
                               const std::string& meaning) {
  const CLI::callback_t read = [quantity, take = std::move(take)](const CLI::results_t& texts) {
    const std::optional<Amount> amount = parse_amount(texts.back(), quantity);
    if (amount) take(*amount);
    return amount.has_value();
  };
  return command.add_option(names, read, with_example(meaning, quantity))->type_name(type_of(quantity));
}

CLI::Option* add_positive_option(CLI::App& command, const std::string& names, Quantity quantity, std::function<void(double)> take,
                                 const std::string& meaning) {
  const std::string name = names.substr(0, names.find(','));
  const auto check = [name, quantity, take = std::move(take)](const Amount& amount) {
    if (!(amount.value > 0))
      throw Error(concat(name, " ", amount.value, ": it must be above 0"), {}, concat("give some, as ", examples_of(quantity)));
    take(amount.value);
  };
  return add_amount_option(command, names, quantity, check, meaning);
}

void check_beside(const CLI::App& command, const std::vector<Beside>& options) {
  for (const Beside& option : options) {
    if (option.holds) continue;
    for (const std::string& name : option.names)
      if (command.get_option(name)->count() > 0)
        throw Error(concat(name, " says nothing without ", option.needed), {}, concat("leave out ", name, ", or give ", option.needed));
  }
}

}  // namespace penstock
