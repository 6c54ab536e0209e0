// SPDX-License-Identifier: Apache-2.0
// penstock simulate of a schedule's table, under costs that are given or measured.
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "cli/simulate.h"
#include "cli/window_text.h"
#include "penstock/error.h"
#include "report/figures_json.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "report/timeline_text.h"
#include "rules/load_schedule.h"
#include "schedule/versions.h"
#include "search/relieve.h"

namespace penstock {
namespace {

// Throws Error where the flag gives not one time for each of `count` things, or none above 0.
void check_shares(const char* flag, const std::vector<double>& values, std::int32_t count, const char* thing) {
  if (values.empty()) return;
  if (std::ssize(values) != count)
    throw Error(concat(flag, " gives ", counted(std::ssize(values), "time"), " for ", counted(count, thing)), {}, "give one for each");
  for (const double value : values) checked(flag, value);
  if (std::ranges::all_of(values, [](double value) { return value == 0; })) throw Error(concat(flag, ": one of them must be above 0"));
}

void check_flags(const SimulateArguments& arguments) {
  const std::pair<const char*, bool> given[] = {{"--schedule", !arguments.schedule.empty()}, {"--set", !arguments.settings.empty()},
                                                {"--plan", !arguments.plan.empty()},         {"--against", !arguments.against.empty()},
                                                {"--figures", !arguments.figures.empty()},   {"--network", !arguments.link.empty()},
                                                {"--mesh", !arguments.mesh.empty()}};
  for (const auto& [flag, is_given] : given) {
    if (is_given)
      throw Error(concat(flag, " is for programs and configurations"), {}, concat(arguments.table.what, " is taken as a schedule's table"));
  }
}

// The step of the table that is chosen, on the machine that the flags describe. Measured costs are what rules go by, too.
SimulatedTable step_of(const SimulateArguments& arguments, const TableChoice& table, bool record) {
  Schedule schedule = table_of(table);
  const TableNumbers numbers = table_numbers(arguments, static_cast<std::int32_t>(schedule.actors.size()));
  check_shares("--stage-times", numbers.stage_times, schedule.whole_stages(), "stage");
  check_shares("--slice-times", numbers.slice_times, schedule.slices, "slice");
  if (numbers.measured && names_rules(table.what)) schedule = table_by(load_rules(table.what), table.options, numbers);
  return simulated_table(std::move(schedule), numbers, record);
}

// Throws Error for times of actions that the table has none of.
void check_actions(const SimulateArguments& arguments, const Schedule& schedule) {
  const bool relieved = count_of(schedule, Kind::R) + count_of(schedule, Kind::OFFLOAD) > 0;
  check_beside(*arguments.command, {{{"--recompute-time", "--offload-time", "--kept"},
                                     relieved,
                                     "a table that recomputes or offloads, as schedule search --recompute-time finds"}});
}

// Variants that run the same work under another schedule, where the table is one of a name: the time and the memory of each. Schedules
// whose tasks were not measured are left out, and those that cut the model otherwise.
std::vector<Variant> other_schedules(const SimulateArguments& arguments, std::int32_t stages) {
  std::vector<Variant> out;
  std::set<std::pair<double, double>> seen;  // times and memory already shown: with one chunk some schedules are the same
  if (names_file(arguments.table.what)) return out;
  for (const ScheduleInfo& info : schedules()) {
    const ScheduleOptions& own = arguments.table.options;
    if (info.name == arguments.table.what || (own.chunks > 1 && !info.chunked) || (own.slices == 1 && info.orders_slices)) continue;
    TableChoice table = arguments.table;
    table.what = info.name;
    table.options = {.actors = own.actors,
                     .microbatches = own.microbatches,
                     .chunks = own.chunks,
                     .slices = own.slices,
                     .forward_only = own.forward_only};
    try {
      const SimulatedTable step = step_of(arguments, table, /*record=*/false);
      if (step.schedule.stages() != stages) continue;
      const double peak = step.time.peak(), makespan = step.time.makespan;
      if (!seen.emplace(makespan, peak).second) continue;
      out.push_back({concat("schedule ", info.name, " (peak live ", fixed(peak, 1), ")"), [makespan] { return makespan; }});
    } catch (const Error&) {
    }
  }
  return out;
}

Explanation explanation_of(const SimulateArguments& arguments, const SimulatedTable& step) {
  std::vector<Variant> variants = better_machines(step);
  for (Variant& other : other_schedules(arguments, step.schedule.stages())) variants.push_back(std::move(other));
  return explain(step.timeline, step.dependencies, variants);
}

// A number of micro-batches' activations as text: "5.5".
std::string short_count(double live) {
  return time_text(live, false);
}

std::string text_of(const SimulatedTable& step) {
  const TableTime& time = step.time;
  const auto text = [&](double value) { return time_text(value, step.seconds); };
  std::vector<std::vector<std::string>> rows;
  for (std::size_t a = 0; a < time.busy.size(); ++a) {
    rows.push_back({concat("actor ", a), text(time.busy[a]), text(time.makespan - time.busy[a]), short_count(time.peak_live[a]),
                    text(time.peak_time[a])});
  }
  return concat(step.schedule.name, ": ", counted(std::ssize(step.schedule.actors), "actor"), ", ", stages_in_words(step.schedule), ", ",
                counted(step.schedule.microbatches(), "micro-batch"), step.seconds ? "" : concat("; ", kOwnUnit), "\n\n",
                table({"", "busy", "idle", "peak live", "at"}, rows), "\nmakespan ", text(time.makespan), ", bubble ",
                fixed(100 * time.bubble(), 1), " %, lower bound ", text(step.lower_bound()), " (busiest actor ", text(step.busiest()),
                ", longest chain of needs ", text(step.dependencies), ")\n", window_text(step.schedule));
}

}  // namespace

void simulate_table(const SimulateArguments& arguments) {
  check_flags(arguments);
  check_size(arguments.table, 4096, 1 << 22);
  const bool fills = is_given(arguments.fill);
  const bool record = arguments.explain || arguments.show || fills || !arguments.timeline.empty();
  const SimulatedTable step = step_of(arguments, arguments.table, record);
  check_actions(arguments, step.schedule);
  const Explanation explanation = arguments.explain ? explanation_of(arguments, step) : Explanation{};
  std::optional<FilledStep> filled;
  if (fills) filled = filled_step(arguments.fill, step.timeline);
  const Timeline& drawn = filled ? filled->drawn : step.timeline;
  if (!arguments.timeline.empty()) write_file(arguments.timeline, timeline_json(drawn));
  if (arguments.json) {
    nlohmann::json out = figures_json(step);
    if (filled) out["fill"] = json_of(*filled);
    if (arguments.explain) {
      out["explanation"] = figures_json(explanation);
      out["explanation"]["text"] = explain_text(step.timeline, explanation);
    }
    return print_json(out);
  }
  std::cout << text_of(step);
  if (filled) std::cout << "\n" << text_of(*filled);
  if (arguments.show) std::cout << "\n" << timeline_text({drawn}, {100, terminal_of(stdout).colour});
  if (arguments.explain) std::cout << "\n" << explanation_text(step.timeline, explanation);
}

}  // namespace penstock
