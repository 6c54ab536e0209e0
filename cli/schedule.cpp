// penstock schedule: lists the schedules, or prints a table by name or from a file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table_options.h"
#include "penstock/schedule.h"
#include "report/schedule_text.h"

namespace penstock {
namespace {

struct Arguments {
  TableChoice table;
  bool show = false;
  bool json = false;
};

void list(bool json) {
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
  if (json) {
    print_json(out);
    return;
  }
  for (const ScheduleInfo& info : schedules()) {
    std::cout << info.name << std::string(width + 2 - info.name.size(), ' ') << info.summary << "\n";
  }
}

void print_table(const Schedule& schedule) {
  nlohmann::json actors = nlohmann::json::array();
  for (const auto& row : schedule.actors) {
    nlohmann::json& actions = actors.emplace_back()["actions"] = nlohmann::json::array();
    for (const Action& action : row) actions.push_back(text(action, schedule.slices, schedule.blocks));
  }
  const nlohmann::json out = {{"name", schedule.name},     {"stages", schedule.whole_stages()},
                              {"slices", schedule.slices}, {"microbatches", schedule.microbatches()},
                              {"steps", schedule.steps},   {"actors", actors}};
  print_json(out);
}

void schedule_command(const Arguments& arguments) {
  if (arguments.table.what == "list") return list(arguments.json);
  const Schedule schedule = table_of(arguments.table);
  // A model's stages may feed each other otherwise, which is checked where there is a model.
  const StageShape shape = shape_of(arguments.table, schedule);
  validate(schedule, shape);
  if (arguments.json) return print_table(schedule);
  std::cout << (arguments.show ? draw(schedule, shape) : print(schedule));
}

}  // namespace

void add_schedule(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command =
      app.add_subcommand("schedule", "print a schedule's table, from its name or from a file; `list` names them; or find one");
  const auto arguments = std::make_shared<Arguments>();
  command->add_option("what", arguments->table.what, "list, a schedule's name, FILE.csv or FILE.rules");
  add_table_options(*command, arguments->table);
  command->add_flag("--show", arguments->show, "draw it over time instead of printing the CSV");
  command->add_flag("--json", arguments->json, "one JSON object");
  command->footer("Example: penstock schedule interleaved-1f1b --actors 4 --microbatches 8 --chunks 2 --show");
  add_schedule_search(*command, models);
  add_schedule_compare(*command);
  command->callback([command, arguments] {
    if (!command->get_subcommands().empty()) return;
    if (arguments->table.what.empty()) throw CLI::RequiredError("what");
    schedule_command(*arguments);
  });
}

}  // namespace penstock
