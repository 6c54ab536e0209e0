// SPDX-License-Identifier: Apache-2.0
// penstock schedule: lists the schedules, or prints a table by name or from a file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/fill.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "cli/table_options.h"
#include "penstock/error.h"
#include "penstock/table.h"
#include "report/progress.h"
#include "report/schedule_text.h"
#include "report/timeline_json.h"
#include "report/timeline_text.h"

namespace penstock {
namespace {

struct Arguments {
  TableChoice table;
  FillChoice fill;
  std::string timeline;  // the file to write it to
  bool show = false;
  bool json = false;
};

void list_schedules(bool json) {
  nlohmann::json out;
  std::size_t width = 0;
  for (const ScheduleInfo& info : schedules()) {
    out["schedules"].push_back({{"name", info.name},
                                {"summary", info.summary},
                                {"chunked", info.chunked},
                                {"takes", info.takes},
                                {"orders_slices", info.orders_slices}});
    width = std::max(width, info.name.size());
  }
  if (json) return print_json(out);
  for (const ScheduleInfo& info : schedules())
    std::cout << info.name << std::string(width + 2 - info.name.size(), ' ') << info.summary << "\n";
}

void print_table(const Schedule& schedule) {
  nlohmann::json actors = nlohmann::json::array();
  for (const auto& row : schedule.actors) {
    nlohmann::json& actions = actors.emplace_back()["actions"] = nlohmann::json::array();
    for (const Action& action : row) actions.push_back(text(action, schedule.slices, schedule.blocks));
  }
  print_json(nlohmann::json{{"name", schedule.name},
                            {"stages", schedule.whole_stages()},
                            {"slices", schedule.slices},
                            {"microbatches", schedule.microbatches()},
                            {"steps", schedule.steps},
                            {"actors", actors}});
}

// The table over time, in which F, I and W of a stage take 1 and B takes 2, with frozen layers in its idle time.
void fill_table(const Arguments& arguments, const Schedule& schedule, const StageShape& shape) {
  const TableCosts costs = uniform_costs(schedule);
  const Timeline step = timeline_of(schedule, shape, costs, time_table(schedule, shape, costs, {.record = true}));
  const FilledStep filled = filled_step(arguments.fill, step);
  if (!arguments.timeline.empty()) write_file(arguments.timeline, timeline_json(filled.drawn));
  if (arguments.json) {
    nlohmann::ordered_json out = {{"name", schedule.name}, {"actors", schedule.actors.size()}};
    out.update(json_of(filled));
    return print_json(out);
  }
  std::cout << text_of(filled) << "\n" << timeline_text({filled.drawn}, {100, terminal_of(stdout).colour});
}

// The list is of names, whatever shapes a table.
void check_list(const CLI::App& command) {
  for (const CLI::Option* option : command.get_options())
    if (option->count() > 0 && !option->get_positional() && option->get_name() != "--json")
      throw Error(concat("schedule list takes no ", option->get_name()), {},
                  concat("leave it out, or name a schedule: penstock schedule 1f1b ", option->get_name()));
}

void schedule_command(const Arguments& arguments) {
  if (arguments.table.what == "list") return list_schedules(arguments.json);
  const Schedule schedule = table_of(arguments.table);
  // A model's stages may feed each other otherwise, which is checked where there is a model.
  const StageShape shape = shape_of(schedule);
  validate(schedule, shape);
  if (is_given(arguments.fill)) return fill_table(arguments, schedule, shape);
  if (!arguments.timeline.empty())
    throw Error(concat("--timeline ", arguments.timeline, ": a schedule alone has no times"), {},
                "add --fill, or simulate it: penstock simulate NAME --timeline FILE.json");
  if (arguments.json) return print_table(schedule);
  std::cout << (arguments.show ? draw(schedule, shape) : print(schedule));
}

}  // namespace

void add_schedule(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command =
      app.add_subcommand("schedule", "Prints a schedule's table, from its name or from a file; list names them; search finds one");
  const auto arguments = std::make_shared<Arguments>();
  begin_group(*command, groups::kWhat);
  command->add_option("WHAT", arguments->table.what, "A schedule's name, FILE.csv or FILE.rules; or list, which names them");
  add_table_options(*command, arguments->table);
  add_fill_options(*command, arguments->fill);
  add_timeline_option(*command, arguments->timeline);
  add_show_flag(*command, arguments->show);
  add_json_flag(*command, arguments->json);
  command->footer(
      "Example:\n  penstock schedule interleaved-1f1b --actors 4 --microbatches 8 --chunks 2 --show\n"
      "  penstock schedule 1f1b --actors 4 --microbatches 4 --fill \"4x3;8x1.5\" --quantum 1/8");
  add_schedule_search(*command, models);
  add_schedule_compare(*command);
  command->callback([command, arguments] {
    if (!command->get_subcommands().empty()) return;
    if (arguments->table.what.empty()) throw CLI::RequiredError("WHAT");
    if (arguments->table.what == "list") check_list(*command);
    schedule_command(*arguments);
  });
}

}  // namespace penstock
