// penstock simulate: time, bubble and memory of a table or a program, without running anything.
#include "cli/simulate.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/commands.h"
#include "penstock/error.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "report/timeline_text.h"
#include "simulate/table_costs.h"

namespace penstock {
namespace {

// A table, what it is held against, and what it costs.
struct Setting {
  Schedule schedule;
  StageShape shape;
  TableCosts costs;
  TableOptions options;
  bool seconds = false;  // else in the unit of the flags

  std::int32_t actors() const { return static_cast<std::int32_t>(schedule.actors.size()); }
  TableTime time() const { return time_table(schedule, shape, costs, options); }
};

// --forward to --weight. B is I and W together, unless it is given; each of them is half of it, unless that is given.
UnitCosts unit_costs(const SimulateArguments& arguments) {
  const auto given = [](const char* flag, const std::optional<double>& value, double otherwise) {
    return value ? checked(flag, *value) : otherwise;
  };
  UnitCosts costs;
  costs.forward = given("--forward", arguments.forward, 1);
  const double backward = given("--backward", arguments.backward, 2);
  costs.input = given("--input", arguments.input, backward / 2);
  costs.weight = given("--weight", arguments.weight, backward / 2);
  costs.backward = arguments.backward ? backward : costs.input + costs.weight;
  costs.bytes = given("--bytes", arguments.bytes, 0);
  return costs;
}

void check_bytes(const SimulateArguments& arguments) {
  const auto names_bandwidth = [](const std::string& link) { return link.find("bandwidth") != std::string::npos; };
  const bool bandwidth = arguments.bandwidth || std::any_of(arguments.links.begin(), arguments.links.end(), names_bandwidth);
  if (bandwidth && !arguments.bytes) throw Error("a bandwidth says nothing without --bytes", {}, "give the bytes of a transfer");
  if (arguments.bytes && !bandwidth)
    throw Error("--bytes says nothing without --bandwidth", {}, "give the bytes that a link moves per time");
}

// Times and links that the flags give.
void set_costs(const SimulateArguments& arguments, Setting& setting) {
  const std::int32_t stages = setting.schedule.stages();
  const double share = static_cast<double>(setting.actors()) / stages;
  setting.costs = uniform_costs(stages, unit_costs(arguments), arguments.per_stage ? 1 : share);
  for (StageCosts& stage : setting.costs.stages) stage.live = share;
  setting.options.network = network_of(arguments, setting.actors(), {});
}

// Those that were measured, with --bytes for each transfer.
void set_measured_costs(const SimulateArguments& arguments, Setting& setting) {
  if (arguments.forward || arguments.backward || arguments.input || arguments.weight || arguments.per_stage)
    throw Error(concat("--costs ", arguments.costs, " says what each stage takes"), {},
                "leave out --forward, --backward, --input, --weight and --per-stage");
  const Costs costs = parse_costs(read_file(arguments.costs), arguments.costs);
  CostContext context;
  context.file = arguments.costs;
  context.backend = arguments.backend;
  setting.seconds = true;
  setting.costs = table_costs_of(costs, setting.schedule, context);
  const double bytes = checked("--bytes", arguments.bytes.value_or(0));
  for (StageCosts& stage : setting.costs.stages) stage.forward_bytes = stage.backward_bytes = stage.weight_bytes = bytes;
  const bool needs_links = setting.actors() > 1 && !arguments.latency;
  setting.options.network = network_of(arguments, setting.actors(), needs_links ? network_of(costs, context) : Network{});
}

Setting setting_of(const SimulateArguments& arguments, const TableChoice& table) {
  Setting out;
  out.schedule = table_of(table);
  out.shape = chain_of(out.schedule);
  validate(out.schedule, out.shape);
  check_bytes(arguments);
  arguments.costs.empty() ? set_costs(arguments, out) : set_measured_costs(arguments, out);
  out.options.disturbance = disturbance_of(arguments, out.actors());
  return out;
}

double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

template <class Change>
Variant variant(const Setting& setting, const std::string& name, Change&& change) {
  return {name, [=] {
            Setting changed = setting;
            change(changed);
            return changed.time().makespan;
          }};
}

void for_each_link(Network& network, const std::function<void(Link&)>& change) {
  change(network.link);
  for (auto& [pair, link] : network.between) change(link);
}

void make_faster(Setting& setting, std::int32_t actor) {
  std::vector<double>& slowdown = setting.options.disturbance.slowdown;
  slowdown.resize(static_cast<std::size_t>(setting.actors()), 1);
  slowdown[static_cast<std::size_t>(actor)] /= 1.1;
}

// One micro-batch's time in a stage: F and B, or I and W.
double time_of(const StageCosts& stage) {
  const auto time = [&](Kind kind) { return stage.time[static_cast<std::size_t>(kind)]; };
  return time(Kind::F) + std::max(time(Kind::B), time(Kind::I) + time(Kind::W));
}

// Machines that are better somewhere, and stages that are cheaper.
std::vector<Variant> better_machines(const Setting& setting, const TableTime& time) {
  std::vector<Variant> out;
  bool latency = false, bandwidth = false;
  Network network = setting.options.network;
  for_each_link(network, [&](Link& link) {
    latency = latency || link.latency > 0;
    bandwidth = bandwidth || std::isfinite(link.bandwidth);
  });
  const auto with_links = [&](const std::string& name, void (*change)(Link&)) {
    out.push_back(variant(setting, name, [change](Setting& s) { for_each_link(s.options.network, change); }));
  };
  if (latency) with_links("no latency", [](Link& link) { link.latency = 0; });
  if (bandwidth) with_links("unlimited bandwidth", [](Link& link) { link.bandwidth = Link().bandwidth; });
  const auto busiest = static_cast<std::int32_t>(std::max_element(time.busy.begin(), time.busy.end()) - time.busy.begin());
  out.push_back(variant(setting, concat("actor ", busiest, " 10 % faster"), [busiest](Setting& s) { make_faster(s, busiest); }));
  const auto [cheapest, dearest] = std::minmax_element(setting.costs.stages.begin(), setting.costs.stages.end(),
                                                       [](const auto& a, const auto& b) { return time_of(a) < time_of(b); });
  if (time_of(*cheapest) < time_of(*dearest)) {
    const auto stage = static_cast<std::size_t>(dearest - setting.costs.stages.begin());
    out.push_back(variant(setting, concat("stage ", stage, " 10 % faster"), [stage](Setting& s) {
      for (double& cost : s.costs.stages[stage].time) cost /= 1.1;
    }));
  }
  if (!setting.options.disturbance.slowdown.empty())
    out.push_back(variant(setting, "no straggler", [](Setting& s) { s.options.disturbance.slowdown.clear(); }));
  return out;
}

// Null where the profile lacks what the table needs.
std::shared_ptr<const Setting> measured_setting(const SimulateArguments& arguments, const TableChoice& table) {
  try {
    return std::make_shared<Setting>(setting_of(arguments, table));
  } catch (const Error&) {
    return nullptr;
  }
}

// The same work under another schedule, where the table is one of a name: what it takes, and what it keeps.
std::vector<Variant> other_schedules(const SimulateArguments& arguments) {
  std::vector<Variant> out;
  if (names_file(arguments.table.what)) return out;
  for (const ScheduleInfo& info : schedules()) {
    if (info.name == arguments.table.what || (arguments.table.options.chunks > 1 && !info.chunked)) continue;
    TableChoice table = arguments.table;
    table.what = info.name;
    const std::shared_ptr<const Setting> setting = measured_setting(arguments, table);
    if (!setting) continue;
    const double peak = largest(setting->time().peak_live);
    out.push_back({concat("schedule ", info.name, " (peak live ", fixed(peak, 1), ")"), [setting] { return setting->time().makespan; }});
  }
  return out;
}

Explanation explanation_of(const SimulateArguments& arguments, const Setting& setting, const Timeline& timeline, const TableTime& time,
                           double dependencies) {
  std::vector<Variant> variants = better_machines(setting, time);
  for (Variant& other : other_schedules(arguments)) variants.push_back(std::move(other));
  return explain(timeline, dependencies, variants);
}

// "5.5": activations of a micro-batch.
std::string short_count(double live) {
  Timeline unit;
  unit.seconds = false;
  return time_text(unit, live);
}

nlohmann::json json_of(const Setting& setting, const TableTime& time, double dependencies) {
  nlohmann::json actors = nlohmann::json::array();
  for (std::size_t a = 0; a < time.busy.size(); ++a) {
    actors.push_back({{"busy", time.busy[a]},
                      {"idle", time.makespan - time.busy[a]},
                      {"peak_live", time.peak_live[a]},
                      {"peak_time", time.peak_time[a]}});
  }
  return {{"kind", "table"},
          {"name", setting.schedule.name},
          {"stages", setting.schedule.stages()},
          {"microbatches", setting.schedule.microbatches()},
          {"makespan", time.makespan},
          {"bubble", time.bubble()},
          {"lower_bound", std::max(largest(time.busy), dependencies)},
          {"lower_bounds", {{"busiest_device", largest(time.busy)}, {"critical_path", dependencies}}},
          {"actors", actors},
          {"busy", time.busy},
          {"peak_live", time.peak_live}};
}

std::string text_of(const Setting& setting, const TableTime& time, double dependencies) {
  Timeline unit;
  unit.seconds = setting.seconds;
  const auto text = [&](double value) { return time_text(unit, value); };
  std::vector<std::vector<std::string>> rows;
  for (std::size_t a = 0; a < time.busy.size(); ++a) {
    rows.push_back({concat("actor ", a), text(time.busy[a]), text(time.makespan - time.busy[a]), short_count(time.peak_live[a]),
                    text(time.peak_time[a])});
  }
  return concat(setting.schedule.name, ": ", setting.actors(), " actors, ", setting.schedule.stages(), " stages, ",
                setting.schedule.microbatches(), " micro-batches\n\n", table({"", "busy", "idle", "peak live", "at"}, rows), "\nmakespan ",
                text(time.makespan), ", bubble ", fixed(100 * time.bubble(), 1), " %, lower bound ",
                text(std::max(largest(time.busy), dependencies)), " (busiest actor ", text(largest(time.busy)), ", longest chain of needs ",
                text(dependencies), ")\n");
}

Timeline timeline_of(const Setting& setting, const TableTime& time) {
  Timeline timeline = timeline_of(setting.schedule, setting.shape, setting.costs, time);
  timeline.seconds = setting.seconds;
  if (timeline.seconds) timeline.memory.clear();  // it would be read as bytes
  return timeline;
}

void simulate_table(const SimulateArguments& arguments) {
  Setting setting = setting_of(arguments, arguments.table);
  setting.options.record = arguments.explain || arguments.show || !arguments.timeline.empty();
  const TableTime time = setting.time();
  const Timeline timeline = setting.options.record ? timeline_of(setting, time) : Timeline{};
  setting.options.record = false;
  const double dependencies = dependency_bound(setting.schedule, setting.shape, setting.costs, setting.options);
  const Explanation explanation = arguments.explain ? explanation_of(arguments, setting, timeline, time, dependencies) : Explanation{};
  if (!arguments.timeline.empty()) write_file(arguments.timeline, timeline_json(timeline));
  if (arguments.json) {
    nlohmann::json out = json_of(setting, time, dependencies);
    if (arguments.explain) out["explanation"] = json_of(timeline, explanation);
    std::cout << out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return;
  }
  std::cout << text_of(setting, time, dependencies);
  if (arguments.show) std::cout << "\n" << timeline_text({timeline}, {100, terminal_of(stdout).colour});
  if (arguments.explain) std::cout << "\n" << idle_table(timeline, explanation) << "\n" << explain_text(timeline, explanation);
}

bool is_program(const std::string& what) {
  if (what.ends_with(".toml")) return true;
  if (!names_file(what) && !std::filesystem::is_regular_file(what)) return false;
  return read_file(what).starts_with("penstock program");
}

void simulate_command(const SimulateArguments& arguments) {
  if (is_program(arguments.table.what)) return simulate_program(arguments);
  simulate_table(arguments);
}

void add_cost_options(CLI::App& command, SimulateArguments& arguments) {
  command.add_option("--forward", arguments.forward, "time of F, of one micro-batch and an actor's whole share [1]");
  command.add_option("--backward", arguments.backward, "time of B [input + weight]");
  command.add_option("--input", arguments.input, "time of I [half of backward, or 1]");
  command.add_option("--weight", arguments.weight, "time of W [half of backward, or 1]");
  command.add_flag("--per-stage", arguments.per_stage, "these are the times of each stage, not of an actor's whole share");
  command.add_option("--latency", arguments.latency, "of every link [0]");
  command.add_option("--bandwidth", arguments.bandwidth, "bytes per time of every link [unlimited]");
  command.add_option("--bytes", arguments.bytes, "of one transfer [0]");
  command.add_option("--link", arguments.links, "one link, both directions: 2-3:latency=0.5,bandwidth=100")
      ->type_name("A-B:latency=L[,bandwidth=B]")
      ->take_all()
      ->expected(1, -1);
  command.add_option("--jitter", arguments.jitter, "each time is up to this part longer or shorter, by --seed [0]");
  command.add_option("--seed", arguments.seed, "of the jitter")->check(CLI::NonNegativeNumber)->capture_default_str();
  command.add_option("--straggler", arguments.stragglers, "actor 2 at half its speed: 2=2")
      ->type_name("ACTOR=FACTOR")
      ->take_all()
      ->expected(1, -1);
}

void add_program_options(CLI::App& command, SimulateArguments& arguments) {
  command.add_option("--backend", arguments.backend, "threads or gloo: whose costs")->check(CLI::IsMember({"threads", "gloo"}));
  command.add_option("--device", arguments.device, "published figures of this device for tasks without measured costs");
  command.add_option("--network", arguments.link, "published figures of this link");
  command.add_option("--devices", arguments.devices, "a file of figures instead of the published ones")->type_name("FILE.toml");
  command.add_option("--schedule", arguments.schedule, "of a configuration: NAME or FILE.csv");
  command.add_option("--set", arguments.settings, "overrides one key of a configuration: --set model.width=256")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->expected(1, -1);
  command.add_option("--against", arguments.against, "a run's folder: its measured step beside the predicted one")->type_name("DIR");
}

}  // namespace

void add_simulate(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command = app.add_subcommand("simulate", "time, bubble and memory of a schedule or a program, without running it");
  const auto arguments = std::make_shared<SimulateArguments>();
  arguments->models = &models;
  command->add_option("what", arguments->table.what, "a schedule's name, FILE.csv, a program's text, or CONFIG.toml")->required();
  add_table_options(*command, arguments->table);
  add_cost_options(*command, *arguments);
  add_program_options(*command, *arguments);
  command->add_option("--costs", arguments->costs, "what penstock profile measured, instead of the times above")->type_name("FILE");
  command->add_flag("--show", arguments->show, "draw it on the terminal");
  command->add_option("--timeline", arguments->timeline, "write it for penstock show, Perfetto and chrome://tracing")
      ->type_name("FILE.json");
  command->add_flag("--explain", arguments->explain, "why it takes as long as it does, and what would help most");
  command->add_flag("--json", arguments->json, "one JSON object");
  command->footer(
      "Examples:\n  penstock simulate 1f1b --actors 4 --microbatches 8 --latency 0.5 --explain\n"
      "  penstock simulate examples/gpt.toml --costs costs.json --schedule zb-h1 --explain\n"
      "  penstock simulate examples/gpt.toml --costs costs.json --against runs/gpt");
  command->callback([arguments] { simulate_command(*arguments); });
}

}  // namespace penstock
