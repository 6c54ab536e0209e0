// SPDX-License-Identifier: Apache-2.0
// penstock batch: solves one of the problems of planning a batch: samples with lengths of their own, and long sequences.
#include "cli/batch.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>

#include "base/papers.h"
#include "batch/batch_planners.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "penstock/error.h"
#include "report/progress.h"
#include "report/schedule_text.h"
#include "report/timeline_json.h"
#include "report/timeline_text.h"

namespace penstock {
namespace {

struct BatchArguments {
  std::string kind, instance;
  std::string timeline;  // the file to write it to
  bool csv = false, show = false, json = false;
};

const std::vector<BatchKind>& batch_kinds() {
  static const std::vector<BatchKind> kinds = [] {
    std::vector<BatchKind> all;
    for (const auto& some : {searched_kinds(), dynapipe_kinds(), flexsp_kinds(), infinipipe_kinds(), slice_kinds(), layer_kinds(),
                             dip_kinds(), lookup_kinds()})
      all.insert(all.end(), some.begin(), some.end());
    return all;
  }();
  return kinds;
}

void list_kinds(bool json) {
  nlohmann::json out;
  for (const BatchKind& kind : batch_kinds()) out["kinds"].push_back({{"name", kind.name}, {"summary", kind.summary}, {"keys", kind.keys}});
  if (json) return print_json(out);
  for (const BatchKind& kind : batch_kinds()) std::cout << concat(kind.name, ": ", kind.summary, "\n    ", join(kind.keys, " "), "\n");
}

const BatchKind& kind_of(const std::string& name) {
  std::vector<std::string> names;
  for (const BatchKind& kind : batch_kinds()) {
    if (kind.name == name) return kind;
    names.push_back(kind.name);
  }
  const std::string near = hint_for(name, names);
  throw Error(concat("there is no kind of problem ", quote(name)), {}, near.empty() ? "the kinds: " + join(names, ", ") : near);
}

// Lists in a row, lists of lists with bars between, and what lies deeper in brackets.
std::string value_text(const nlohmann::ordered_json& value, int depth = 0) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  const bool nested = std::any_of(value.begin(), value.end(), [](const auto& element) { return element.is_array(); });
  const std::string inside =
      join(value, depth == 0 && nested ? " | " : " ", [&](const auto& element) { return value_text(element, depth + 1); });
  return depth > 1 ? concat("(", inside, ")") : inside;
}

void print_values(const nlohmann::ordered_json& values) {
  std::size_t width = 0;
  for (const auto& [key, value] : values.items()) width = std::max(width, key.size());
  for (const auto& [key, value] : values.items()) {
    std::string title = key;
    std::replace(title.begin(), title.end(), '_', ' ');
    std::cout << title << std::string(width + 2 - key.size(), ' ') << value_text(value) << "\n";
  }
}

std::string picture_of(const BatchAnswer& answer, bool csv) {
  if (csv) return print(*answer.table);
  if (answer.timeline) return timeline_text({*answer.timeline}, {100, terminal_of(stdout).colour});
  return draw(*answer.table, shape_of(*answer.table));
}

void batch_command(const BatchArguments& arguments) {
  if (arguments.kind == "list") return list_kinds(arguments.json);
  const BatchKind& kind = kind_of(arguments.kind);
  const bool inside = arguments.instance.starts_with("{");
  const JsonFile file{inside ? "instance" : arguments.instance, {}};
  const nlohmann::json content = parse_json(inside ? arguments.instance : read_file(arguments.instance), file);
  const JsonNode instance(content, file);
  instance.check_keys(kind.keys);
  const BatchAnswer answer = kind.solve(instance);
  if (!arguments.timeline.empty()) {
    if (!answer.timeline) throw Error(concat("the answer of ", kind.name, " has no timeline"), {}, "leave out --timeline");
    write_file(arguments.timeline, timeline_json(*answer.timeline));
  }
  if (arguments.csv || arguments.show) {
    if (!answer.table) throw Error(concat("the answer of ", kind.name, " is no table"), {}, "leave out --csv and --show");
    std::cout << picture_of(answer, arguments.csv);
  } else if (arguments.json) {
    print_json(answer.values);
  } else {
    print_values(answer.values);
  }
}

std::string run_planners() {
  std::string out = "Planners of the batches of a run (batch.planner):\n";
  for (const BatchPlannerInfo& planner : batch_planners()) out += concat("  ", planner.name, ": ", planner.summary, "\n");
  return out;
}

}  // namespace

void add_batch(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("batch", "Plans a batch whose samples have lengths of their own, one problem at a time; list names them");
  const auto arguments = std::make_shared<BatchArguments>();
  begin_group(*command, groups::kWhat);
  command->add_option("KIND", arguments->kind, "A kind of problem: cut, cyclic, groups, slices, exchange, ...; or list, which names them")
      ->required();
  command->add_option("INSTANCE", arguments->instance, "FILE.json, or the JSON itself");
  begin_group(*command, groups::kOutput);
  CLI::Option* csv = command->add_flag("--csv", arguments->csv, "Print the answer's table as CSV");
  CLI::Option* show = command->add_flag("--show", arguments->show,
                                        "Draw the answer's table, as if all micro-batches took the same time where it has no times");
  add_timeline_option(*command, arguments->timeline);
  add_json_flag(*command, arguments->json);
  CLI::Option* json = command->get_option("--json");
  csv->excludes(show)->excludes(json);
  show->excludes(json);
  command->footer(run_planners() +
                  "Example:\n  penstock batch list\n"
                  "  penstock batch partition '{\"values\": [8, 7, 6, 5, 4], \"bins\": 2}'\n"
                  "  penstock batch cyclic '{\"actors\": 4, \"forward\": [5, 1, 1, 4], \"sizes\": [5, 1, 1, 4]}' --show");
  command->callback([arguments] {
    if (arguments->kind != "list" && arguments->instance.empty()) throw CLI::RequiredError("INSTANCE");
    batch_command(*arguments);
  });
}

}  // namespace penstock
