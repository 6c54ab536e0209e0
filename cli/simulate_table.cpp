// SPDX-License-Identifier: Apache-2.0
// penstock simulate of a schedule's table, under costs that are given or measured.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/text.h"
#include "base/words.h"
#include "cli/output.h"
#include "cli/simulate.h"
#include "cli/window_text.h"
#include "penstock/error.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "report/timeline_text.h"
#include "rules/load_schedule.h"
#include "schedule/kinds.h"
#include "schedule/versions.h"
#include "simulate/table_costs.h"

namespace penstock {
namespace {

struct Machine {
  TableCosts costs;
  TableOptions options;
};

// A table, the stages that it is checked against, and the machine that it runs on.
struct TableSetting {
  Schedule schedule;
  StageShape shape;
  Machine machine;
  bool seconds = false;  // whether times are in seconds; else in the unit of the flags

  std::int32_t actors() const { return static_cast<std::int32_t>(schedule.actors.size()); }
  TableTime time(const Machine& on) const { return time_table(schedule, shape, on.costs, on.options); }
};

// The values of a flag over their mean, one for each of `count` things; ones where the flag is not given.
std::vector<double> over_mean(const std::string& flag, const std::vector<double>& values, std::int32_t count, const char* thing) {
  if (values.empty()) return std::vector<double>(static_cast<std::size_t>(count), 1);
  if (std::ssize(values) != count)
    throw Error(concat(flag, " gives ", counted(std::ssize(values), "time"), " for ", counted(count, thing)), {}, "give one for each");
  double sum = 0;
  for (const double value : values) sum += checked(flag, value);
  if (!(sum > 0)) throw Error(concat(flag, ": one of them must be above 0"));
  std::vector<double> out;
  for (const double value : values) out.push_back(value * count / sum);
  return out;
}

// A part of a stage's costs: `time` of its time, and `amount` of all else. What is of a whole stage stays so.
StageCosts part_of_costs(StageCosts stage, double time, double amount) {
  for (std::size_t k = 0; k < stage.time.size(); ++k)
    if (needs_microbatch(static_cast<Kind>(k))) stage.time[k] *= time;
  for (double* value : {&stage.forward_bytes, &stage.backward_bytes, &stage.weight_bytes, &stage.gradient_bytes, &stage.live, &stage.kept})
    *value *= amount;
  return stage;
}

// The costs of each part from those of whole stages: to each slice an equal share, but for --slice-times. A slice that is attention alone,
// as blocks of it are apart, has one for each slice before it and half a one of its own, and each takes as long.
TableCosts costs_of_slices(const TableCosts& whole, const Schedule& schedule, const std::vector<double>& times) {
  const double slices = static_cast<double>(schedule.slices);
  std::map<StagePart, double> apart;  // blocks of each slice
  for (const StagePart& block : schedule.blocks) ++apart[{block.stage, block.slice}];
  TableCosts out;
  const std::int32_t parts = schedule.stages();
  for (std::int32_t number = 0; number < parts; ++number) {
    const StagePart part = part_of(number, schedule.slices, schedule.blocks);
    const auto found = apart.find({part.stage, part.slice});
    const double gone = found == apart.end() ? 0 : found->second, all = part.slice + 0.5;
    const double share = (part.block >= 0 ? 1 : all - gone) / all / slices;
    out.stages.push_back(part_of_costs(whole.stages[part.stage], times[part.slice] * share, share));
  }
  return out;
}

// Sets the times and links that the flags give.
void set_costs(const SimulateArguments& arguments, TableSetting& setting) {
  const std::int32_t slices = setting.schedule.slices, stages = setting.schedule.whole_stages();
  const auto frozen = static_cast<std::int32_t>(setting.schedule.forward_times.size());
  const double share = static_cast<double>(setting.actors()) / (stages - frozen);
  TableCosts costs = uniform_costs(stages, unit_costs(arguments), arguments.per_stage ? 1 : share);
  for (StageCosts& stage : costs.stages) stage.live = share;
  for (std::size_t s = 0; s < setting.schedule.forward_times.size(); ++s)
    for (double& time : costs.stages[s].time) time *= setting.schedule.forward_times[s];
  set_memory_costs(arguments, share, costs);
  const std::vector<double> times = over_mean("--stage-times", arguments.stage_times, stages, "stage");
  for (std::size_t s = 0; s < times.size(); ++s)
    for (double& time : costs.stages[s].time) time *= times[s];
  setting.machine.costs = costs_of_slices(costs, setting.schedule, over_mean("--slice-times", arguments.slice_times, slices, "slice"));
  setting.machine.options.network = network_of(arguments, setting.actors(), {});
}

// Sets the times that were measured, with --bytes for each transfer. Rules make another table from them.
void set_measured_costs(const SimulateArguments& arguments, const TableChoice& table, TableSetting& setting) {
  if (arguments.forward || arguments.backward || arguments.input || arguments.weight || arguments.per_stage ||
      !arguments.stage_times.empty() || !arguments.slice_times.empty())
    throw Error(concat("--costs ", arguments.costs, " says what each stage takes"), {},
                "leave out --forward, --backward, --input, --weight, --per-stage, --stage-times and --slice-times");
  const Costs costs = parse_costs(read_file(arguments.costs), arguments.costs);
  const CostContext context{.file = arguments.costs, .backend = arguments.backend};
  setting.seconds = true;
  setting.machine.costs = table_costs_of(costs, setting.schedule, context);
  const std::int32_t slices = setting.schedule.slices;
  set_bytes(arguments, slices, setting.machine.costs);
  set_memory_costs(arguments, 1.0 * setting.actors() * slices / setting.schedule.stages(), setting.machine.costs, slices);
  const bool needs_links = setting.actors() > 1 && !arguments.latency;
  setting.machine.options.network = network_of(arguments, setting.actors(), needs_links ? network_of(costs, context) : Network{});
  if (!names_rules(table.what)) return;
  setting.schedule = as_sharded(
      arguments, schedule_by(load_rules(table.what), table.options, setting.machine.costs, setting.machine.options.network).schedule);
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

TableSetting setting_of(const SimulateArguments& arguments, const TableChoice& table) {
  TableSetting out;
  out.schedule = as_sharded(arguments, table_of(table));
  out.shape = shape_of(out.schedule);
  validate(out.schedule, out.shape);
  check_bytes(arguments);
  arguments.costs.empty() ? set_costs(arguments, out) : set_measured_costs(arguments, table, out);
  out.machine.options.disturbance = disturbance_of(arguments, out.actors());
  out.machine.options.atomic_pairs = arguments.atomic_pairs;
  return out;
}

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

// `setting` must outlive the variant.
template <class Change>
Variant variant(const TableSetting& setting, const std::string& name, Change change) {
  return {name, [&setting, change] {
            Machine changed = setting.machine;
            change(changed);
            return setting.time(changed).makespan;
          }};
}

void for_each_link(Network& network, const std::function<void(Link&)>& change) {
  change(network.link);
  for (auto& [pair, link] : network.between) change(link);
}

// The time of one micro-batch in a stage: F and B, or I and W.
double time_of(const StageCosts& stage) {
  const auto time = [&](Kind kind) { return stage.time[static_cast<std::size_t>(kind)]; };
  return time(Kind::F) + std::max(time(Kind::B), time(Kind::I) + time(Kind::W));
}

// Variants of the machine that are better in one way, and stages that are cheaper.
std::vector<Variant> better_machines(const TableSetting& setting, const TableTime& time) {
  std::vector<Variant> out;
  bool latency = false, bandwidth = false;
  Network network = setting.machine.options.network;
  for_each_link(network, [&](Link& link) {
    latency = latency || link.latency > 0;
    bandwidth = bandwidth || std::isfinite(link.bandwidth);
  });
  const auto with_links = [&](const std::string& name, void (*change)(Link&)) {
    out.push_back(variant(setting, name, [change](Machine& m) { for_each_link(m.options.network, change); }));
  };
  if (latency) with_links("no latency", [](Link& link) { link.latency = 0; });
  if (bandwidth) with_links("unlimited bandwidth", [](Link& link) { link.bandwidth = Link().bandwidth; });
  const auto busiest = static_cast<std::size_t>(std::max_element(time.busy.begin(), time.busy.end()) - time.busy.begin());
  out.push_back(variant(setting, concat("actor ", busiest, " 10 % faster"), [busiest, actors = time.busy.size()](Machine& m) {
    m.options.disturbance.slowdown.resize(actors, 1);
    m.options.disturbance.slowdown[busiest] /= 1.1;
  }));
  const auto [cheapest, dearest] = std::minmax_element(setting.machine.costs.stages.begin(), setting.machine.costs.stages.end(),
                                                       [](const auto& a, const auto& b) { return time_of(a) < time_of(b); });
  if (time_of(*cheapest) < time_of(*dearest)) {
    const auto stage = static_cast<std::size_t>(dearest - setting.machine.costs.stages.begin());
    out.push_back(variant(
        setting,
        concat("stage ", stage_text(static_cast<std::int32_t>(stage), setting.schedule.slices, setting.schedule.blocks), " 10 % faster"),
        [stage](Machine& m) {
          for (double& cost : m.costs.stages[stage].time) cost /= 1.1;
        }));
  }
  if (!setting.machine.options.disturbance.slowdown.empty())
    out.push_back(variant(setting, "no straggler", [](Machine& m) { m.options.disturbance.slowdown.clear(); }));
  return out;
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
      const TableSetting setting = setting_of(arguments, table);
      if (setting.schedule.stages() != stages) continue;
      const TableTime time = setting.time(setting.machine);
      const double peak = largest(time.peak_live), makespan = time.makespan;
      if (!seen.emplace(makespan, peak).second) continue;
      out.push_back({concat("schedule ", info.name, " (peak live ", fixed(peak, 1), ")"), [makespan] { return makespan; }});
    } catch (const Error&) {
    }
  }
  return out;
}

Explanation explanation_of(const SimulateArguments& arguments, const TableSetting& setting, const Timeline& timeline, const TableTime& time,
                           double dependencies) {
  std::vector<Variant> variants = better_machines(setting, time);
  for (Variant& other : other_schedules(arguments, setting.schedule.stages())) variants.push_back(std::move(other));
  return explain(timeline, dependencies, variants);
}

// A number of micro-batches' activations as text: "5.5".
std::string short_count(double live) {
  return time_text(live, false);
}

nlohmann::json json_of(const TableSetting& setting, const TableTime& time, double dependencies) {
  nlohmann::json actors = nlohmann::json::array(), versions = actors, late = actors;
  for (std::size_t a = 0; a < time.busy.size(); ++a) {
    const auto actor = static_cast<std::int32_t>(a);
    actors.push_back({{"busy", time.busy[a]},
                      {"idle", time.makespan - time.busy[a]},
                      {"peak_live", time.peak_live[a]},
                      {"peak_time", time.peak_time[a]},
                      {"versions", versions_held(setting.schedule, actor)},
                      {"staleness", staleness(setting.schedule, actor)}});
    versions.push_back(actors.back()["versions"]);
    late.push_back(actors.back()["staleness"]);
  }
  return {{"kind", "table"},
          {"name", setting.schedule.name},
          {"stages", setting.schedule.whole_stages()},
          {"slices", setting.schedule.slices},
          {"microbatches", setting.schedule.microbatches()},
          {"steps", setting.schedule.steps},
          {"makespan", time.makespan},
          {"bubble", time.bubble()},
          {"lower_bound", std::max(largest(time.busy), dependencies)},
          {"lower_bounds", {{"busiest_device", largest(time.busy)}, {"critical_path", dependencies}}},
          {"actors", actors},
          {"busy", time.busy},
          {"peak_live", time.peak_live},
          {"versions", versions},
          {"staleness", late}};
}

std::string text_of(const TableSetting& setting, const TableTime& time, double dependencies) {
  const auto text = [&](double value) { return time_text(value, setting.seconds); };
  std::vector<std::vector<std::string>> rows;
  for (std::size_t a = 0; a < time.busy.size(); ++a) {
    rows.push_back({concat("actor ", a), text(time.busy[a]), text(time.makespan - time.busy[a]), short_count(time.peak_live[a]),
                    text(time.peak_time[a])});
  }
  return concat(setting.schedule.name, ": ", counted(setting.actors(), "actor"), ", ", stages_in_words(setting.schedule), ", ",
                counted(setting.schedule.microbatches(), "micro-batch"), setting.seconds ? "" : concat("; ", kOwnUnit), "\n\n",
                table({"", "busy", "idle", "peak live", "at"}, rows), "\nmakespan ", text(time.makespan), ", bubble ",
                fixed(100 * time.bubble(), 1), " %, lower bound ", text(std::max(largest(time.busy), dependencies)), " (busiest actor ",
                text(largest(time.busy)), ", longest chain of needs ", text(dependencies), ")\n", window_text(setting.schedule));
}

Timeline timeline_of(const TableSetting& setting, const TableTime& time) {
  Timeline timeline = timeline_of(setting.schedule, setting.shape, setting.machine.costs, time);
  timeline.seconds = setting.seconds;
  if (timeline.seconds) timeline.memory.clear();  // it counts micro-batches, but would be read as bytes
  return timeline;
}

}  // namespace

void simulate_table(const SimulateArguments& arguments) {
  check_flags(arguments);
  check_size(arguments.table, 4096, 1 << 22);
  TableSetting setting = setting_of(arguments, arguments.table);
  const bool fills = is_given(arguments.fill);
  setting.machine.options.record = arguments.explain || arguments.show || fills || !arguments.timeline.empty();
  const TableTime time = setting.time(setting.machine);
  const Timeline timeline = setting.machine.options.record ? timeline_of(setting, time) : Timeline{};
  setting.machine.options.record = false;
  const double dependencies = dependency_bound(setting.schedule, setting.shape, setting.machine.costs, setting.machine.options);
  const Explanation explanation = arguments.explain ? explanation_of(arguments, setting, timeline, time, dependencies) : Explanation{};
  std::optional<FilledStep> filled;
  if (fills) filled = filled_step(arguments.fill, timeline);
  const Timeline& drawn = filled ? filled->drawn : timeline;
  if (!arguments.timeline.empty()) write_file(arguments.timeline, timeline_json(drawn));
  if (arguments.json) {
    nlohmann::json out = json_of(setting, time, dependencies);
    if (filled) out["fill"] = json_of(*filled);
    if (arguments.explain) out["explanation"] = json_of(timeline, explanation);
    return print_json(out);
  }
  std::cout << text_of(setting, time, dependencies);
  if (filled) std::cout << "\n" << text_of(*filled);
  if (arguments.show) std::cout << "\n" << timeline_text({drawn}, {100, terminal_of(stdout).colour});
  if (arguments.explain) std::cout << "\n" << idle_table(timeline, explanation) << "\n" << explain_text(timeline, explanation);
}

}  // namespace penstock
