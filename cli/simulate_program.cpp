// SPDX-License-Identifier: Apache-2.0
// penstock simulate of a program: from its text or compiled from a configuration; alone or beside a measured run.
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/text.h"
#include "cli/kernels.h"
#include "cli/output.h"
#include "cli/shared_options.h"
#include "cli/simulate.h"
#include "config/compile.h"
#include "penstock/error.h"
#include "program/verify.h"
#include "report/figures_json.h"
#include "report/metrics_svg.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "report/timeline_parts.h"
#include "report/timeline_text.h"
#include "simulate/compare.h"
#include "simulate/durations.h"

namespace penstock {
namespace {

// A program and everything that its time depends on.
struct Setting {
  Program program;
  Durations durations;
  Network network;
  double overhead = 0;                     // seconds of a step beyond the last device's work
  std::vector<std::int64_t> kernel_bytes;  // by device: what kernels allocate beside its arenas

  double makespan() const { return simulate(program, durations, network).makespan; }
};

bool is_config(const SimulateArguments& arguments) {
  return names_config(arguments.table.what, *arguments.models);
}

Config config_of(const SimulateArguments& arguments, const std::string& schedule) {
  std::vector<Override> overrides;
  for (const std::string& setting : arguments.settings) overrides.push_back(parse_override(setting));
  for (const CLI::Option* option : arguments.table.flags) {
    if (option->count() == 0) continue;
    std::string key = option->get_name().substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    overrides.push_back({"pipeline." + key, join(option->results(), ","), option->get_name()});
  }
  if (!schedule.empty()) overrides.push_back({"pipeline.schedule", schedule, "--schedule"});
  if (!arguments.plan.empty()) overrides.push_back({"pipeline.plan", arguments.plan, "--plan"});
  if (!arguments.mesh.empty()) overrides.push_back(mesh_override(arguments.mesh));
  return load_config(arguments.table.what, overrides, *arguments.models);
}

Program program_of(const SimulateArguments& arguments, const std::string& schedule) {
  if (is_config(arguments)) {
    const Config config = config_of(arguments, schedule);
    Program program = compile_training(config, prepare(config, *arguments.models));
    choose_kernels(config, program);  // chosen first, because costs are looked up by the tasks' graphs
    return program;
  }
  for (const CLI::Option* option : arguments.table.flags)
    if (option->count() > 0)
      throw Error(concat(option->get_name(), " is for schedules and configurations"), {}, concat(arguments.table.what, " is a program"));
  if (!schedule.empty() || !arguments.settings.empty() || !arguments.plan.empty() || !arguments.mesh.empty())
    throw Error("--schedule, --plan, --mesh and --set are for configurations", {}, concat(arguments.table.what, " is a program"));
  Program program = parse_program(read_file(arguments.table.what), arguments.table.what);
  verify(program);
  return program;
}

// The value of --figures: a device's name, or none, and the table that it is in.
struct Figures {
  std::string device;
  DeviceTable table = published_devices();
};

Figures figures_of(const SimulateArguments& arguments) {
  Figures out;
  for (const std::string& figures : arguments.figures) {
    if (figures.ends_with(".toml")) {
      out.table = parse_devices(read_file(figures), figures);
      continue;
    }
    if (!out.device.empty()) throw Error(concat("--figures names two devices, ", out.device, " and ", figures), {}, "give one");
    out.device = figures;
  }
  return out;
}

// Sets the costs that --costs, or --figures and --network, give for the program. Throws Error where they give none.
void add_costs(const SimulateArguments& arguments, Setting& setting) {
  const auto [device, table] = figures_of(arguments);
  if (arguments.costs.empty() && device.empty())
    throw Error(concat("how long do the tasks of ", arguments.table.what, " take?"), {},
                "--costs FILE, which penstock profile CONFIG --out FILE measures; or --figures NAME, for published figures of a device");
  Costs costs;
  const TableNumbers numbers = numbers_of(arguments, static_cast<std::int32_t>(setting.program.devices.size()));
  CostContext context{.backend = numbers.backend};
  if (!device.empty()) context.roofline = table.device(device);
  if (!arguments.costs.empty()) {
    context.file = arguments.costs;
    costs = parse_costs(read_file(arguments.costs), arguments.costs);
  }
  setting.durations = durations_of(setting.program, costs, context);
  setting.kernel_bytes = kernel_bytes(setting.program, costs);
  disturb(setting.durations, setting.program, {.jitter = numbers.jitter, .seed = numbers.seed, .slowdown = numbers.slowdown});
  const bool connected = setting.program.devices.size() == 1 || numbers.latency || numbers.bandwidth;
  Network network;
  if (!arguments.link.empty())
    network.link = table.link(arguments.link);
  else if (!connected && !arguments.costs.empty())
    network = network_of(costs, context);
  else if (!connected)
    throw Error("what connects the devices?", {}, "--network NAME, for published figures of a link, or --latency and --bandwidth");
  network.host = host_link(costs, context);
  setting.network = with_given_links(numbers, std::move(network));
  const auto overhead = costs.step_overhead.find(numbers.backend);
  if (overhead != costs.step_overhead.end()) setting.overhead = overhead->second;
}

Setting setting_of(const SimulateArguments& arguments, const std::string& schedule) {
  Setting setting;
  setting.program = program_of(arguments, schedule);
  add_costs(arguments, setting);
  return setting;
}

std::int64_t predicted_bytes(const Setting& setting, std::size_t number) {
  const DeviceProgram& device = setting.program.devices[number];
  return device.device_bytes() + setting.kernel_bytes[number];
}

// For each device, the most micro-batches alive at once, from the begin of F to the end of B, or of W; each counts as devices/stages.
// Several that a stage takes together are one.
std::vector<double> peak_live(const Timeline& timeline) {
  struct Change {
    double time, amount;
  };
  std::vector<std::vector<Change>> changes(timeline.devices.size());
  std::int32_t stages = 1;
  using Work = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // device, stage and micro-batch
  std::set<Work> begun;                                               // an F may be several runs
  std::map<Work, double> last;                                        // the end of B, I or W
  for (const Activity& a : timeline.activities) {
    if (a.lane != Lane::compute || !a.action) continue;
    stages = std::max(stages, a.stage + 1);
    if (a.kind == Kind::F && begun.insert({a.device, a.stage, a.microbatch}).second)
      changes[static_cast<std::size_t>(a.device)].push_back({a.begin, 1});
    if (a.kind != Kind::B && a.kind != Kind::I && a.kind != Kind::W) continue;
    double& end = last[{a.device, a.stage, a.microbatch}];
    end = std::max(end, a.end);
  }
  for (const auto& [work, end] : last) changes[static_cast<std::size_t>(std::get<0>(work))].push_back({end, -1});
  std::vector<double> out;
  for (auto& row : changes) {
    std::sort(row.begin(), row.end(),
              [](const Change& a, const Change& b) { return std::pair(a.time, a.amount) < std::pair(b.time, b.amount); });
    double live = 0, most = 0;
    for (const Change& change : row) most = std::max(most, live += change.amount);
    out.push_back(most * static_cast<double>(timeline.devices.size()) / stages);
  }
  return out;
}

nlohmann::json memory_json(const MemoryPoint& point) {
  nlohmann::json out = {{"time", point.time}, {"total", point.total()}};
  for (std::size_t c = 0; c < kMemoryClasses; ++c) out[std::string(name(static_cast<MemoryClass>(c)))] = point.amount[c];
  return out;
}

nlohmann::json json_of(const Setting& setting, const Simulation& simulation) {
  const std::vector<double> live = peak_live(simulation.timeline);
  nlohmann::json out = {{"kind", "program"},
                        {"name", setting.program.name},
                        {"microbatches", setting.program.microbatches},
                        {"makespan", simulation.makespan},
                        {"step_seconds", simulation.makespan + setting.overhead},
                        {"bubble", simulation.bubble()},
                        {"lower_bound", simulation.lower_bound()},
                        {"lower_bounds", {{"busiest_device", simulation.busiest_device}, {"critical_path", simulation.critical_path}}},
                        {"actors", nlohmann::json::array()},
                        {"busy", simulation.busy},
                        {"peak_live", live},
                        {"peak_bytes", nlohmann::json::array()}};
  for (std::size_t d = 0; d < simulation.busy.size(); ++d) {
    const std::int64_t bytes = predicted_bytes(setting, d);
    out["peak_bytes"].push_back(bytes);
    out["actors"].push_back({{"busy", simulation.busy[d]},
                             {"idle", simulation.makespan - simulation.busy[d]},
                             {"peak_live", live[d]},
                             {"peak_bytes", bytes},
                             {"live_bytes", memory_json(*peak_of(simulation.timeline.memory[d]))}});
  }
  return out;
}

std::string text_of(const Setting& setting, const Simulation& simulation) {
  const auto text = [&](double time) { return time_text(time, simulation.timeline.seconds); };
  const std::vector<double> live = peak_live(simulation.timeline);
  std::vector<std::vector<std::string>> rows;
  for (std::size_t d = 0; d < simulation.busy.size(); ++d) {
    const MemoryPoint& peak = *peak_of(simulation.timeline.memory[d]);
    rows.push_back({concat("device ", d), text(simulation.busy[d]), text(simulation.makespan - simulation.busy[d]), fixed(live[d], 2),
                    bytes_text(static_cast<double>(predicted_bytes(setting, d))), bytes_text(peak.total()), text(peak.time)});
  }
  return concat("program @", setting.program.name, "\n\n", table({"", "busy", "idle", "peak live", "memory", "in use at most", "at"}, rows),
                "\nmakespan ", text(simulation.makespan), ", step ", text(simulation.makespan + setting.overhead), ", bubble ",
                fixed(100 * simulation.bubble(), 1), " %, lower bound ", text(simulation.lower_bound()), " (busiest device ",
                text(simulation.busiest_device), ", longest chain of needs ", text(simulation.critical_path), ")\n");
}

// Variants of the machine that are better in one way, and one with the longest task shortened.
std::vector<Variant> variants_of(const SimulateArguments& arguments, const Setting& setting, const Simulation& simulation) {
  std::vector<Variant> out;
  const auto add = [&](const std::string& name, auto change) {
    out.push_back({name, [&setting, change] {
                     Durations durations = setting.durations;
                     Network network = setting.network;
                     change(durations, network);
                     return simulate(setting.program, durations, network).makespan;
                   }});
  };
  const auto for_links = [](Network& network, auto change) {
    change(network.link);
    for (auto& [pair, link] : network.between) change(link);
    for (auto& [opcode, link] : network.collectives) change(link);
  };
  if (setting.program.devices.size() > 1) {
    add("no latency",
        [=](Durations&, Network& n) { for_links(n, [](Link& link) { link.latency = link.start_seconds = link.wake_seconds = 0; }); });
    add("unlimited bandwidth", [=](Durations&, Network& n) { for_links(n, [](Link& link) { link.bandwidth = Link().bandwidth; }); });
  }
  const auto busiest = static_cast<std::size_t>(std::max_element(simulation.busy.begin(), simulation.busy.end()) - simulation.busy.begin());
  add(concat("device ", busiest, " 10 % faster"), [busiest](Durations& durations, Network&) {
    for (double& seconds : durations[busiest]) seconds /= 1.1;
  });
  std::vector<double> by_task(setting.program.tasks.size());
  for (const Activity& a : simulation.timeline.activities)
    if (a.lane == Lane::compute && a.task >= 0) by_task[static_cast<std::size_t>(a.task)] += a.end - a.begin;
  const auto task = std::max_element(by_task.begin(), by_task.end()) - by_task.begin();
  add(concat("task ", setting.program.tasks[static_cast<std::size_t>(task)].name, " 10 % faster"),
      [task, &program = setting.program](Durations& durations, Network&) {
        for (std::size_t d = 0; d < durations.size(); ++d)
          for (std::size_t i = 0; i < durations[d].size(); ++i)
            if (program.devices[d].instructions[i].opcode == Opcode::run && program.devices[d].instructions[i].task.value == task)
              durations[d][i] /= 1.1;
      });
  if (!is_config(arguments)) return out;
  const std::string own = config_of(arguments, arguments.schedule).pipeline.schedule;
  for (const ScheduleInfo& info : schedules()) {
    if (info.name == own || info.orders_slices) continue;
    try {
      const double makespan = setting_of(arguments, info.name).makespan();
      out.push_back({concat("schedule ", info.name), [makespan] { return makespan; }});
    } catch (const Error&) {
      // This schedule refuses the shape, or has tasks that were not measured.
    }
  }
  return out;
}

double median_seconds(const std::string& folder) {
  const std::string file = (std::filesystem::path(folder) / "metrics.jsonl").string();
  const std::vector<StepMetrics> steps = parse_metrics(read_file(file), file);
  if (steps.empty()) throw Error(concat(file, " has no steps"));
  return median_of(steps, &StepMetrics::seconds);
}

nlohmann::json json_of(const Pair& pair) {
  return {{"predicted", pair.predicted}, {"measured", pair.measured}, {"error", pair.error()}};
}

void print_comparison(const SimulateArguments& arguments, const Setting& setting, const Simulation& simulation) {
  const std::string file = timeline_of_run(arguments.against);
  const TimelineComparison comparison = compare(simulation.timeline, parse_timeline(read_file(file), file));
  const Pair step{simulation.makespan + setting.overhead, median_seconds(arguments.against)};
  if (!arguments.json) {
    std::cout << comparison_text(comparison)
              << concat("\nThe median step of ", arguments.against, " took ", time_text(step.measured, simulation.timeline.seconds),
                        "; predicted are ", time_text(step.predicted, simulation.timeline.seconds), " (", fixed(100 * step.error(), 1),
                        " %).\n");
    return;
  }
  nlohmann::json out = {{"step", json_of(step)}, {"makespan", json_of(comparison.makespan)}};
  for (const DevicePair& device : comparison.devices)
    out["devices"].push_back({{"name", device.name},
                              {"busy", json_of(device.busy)},
                              {"first", json_of(device.first)},
                              {"last", json_of(device.last)},
                              {"peak", json_of(device.peak)}});
  for (const TaskPair& task : comparison.tasks)
    out["tasks"].push_back({{"name", task.name}, {"count", task.count}, {"seconds", json_of(task.seconds)}});
  print_json(out);
}

// The timeline's title, in the form that training uses for measured ones.
std::string title_of(const SimulateArguments& arguments, const Program& program) {
  if (!is_config(arguments)) return concat(program.name, ", predicted");
  const Config config = config_of(arguments, arguments.schedule);
  return concat(config.model.name, ", ", config.pipeline.schedule, ", predicted");
}

}  // namespace

void simulate_program(const SimulateArguments& arguments) {
  check_beside(*arguments.command,
               {{.names = {"--forward", "--backward", "--input", "--weight", "--recompute-time", "--offload-time", "--kept", "--gather",
                           "--reduce", "--parameters", "--per-stage", "--bytes", "--stage-times", "--slice-times", "--atomic-pairs"},
                 .holds = false,
                 .needed = "a schedule's table: a program's tasks have measured or published times"}});
  if (!arguments.against.empty()) timeline_of_run(arguments.against);  // ahead of anything that takes long
  const Setting setting = setting_of(arguments, arguments.schedule);
  Simulation simulation = simulate(setting.program, setting.durations, setting.network, {.record = true});
  simulation.timeline.title = title_of(arguments, setting.program);
  std::optional<FilledStep> filled;
  if (is_given(arguments.fill)) filled = filled_step(arguments.fill, simulation.timeline);
  const Timeline& drawn = filled ? filled->drawn : simulation.timeline;
  if (!arguments.timeline.empty()) write_file(arguments.timeline, timeline_json(drawn));
  if (!arguments.against.empty()) return print_comparison(arguments, setting, simulation);
  Explanation explanation;
  if (arguments.explain) explanation = explain(simulation.timeline, simulation.critical_path, variants_of(arguments, setting, simulation));
  if (arguments.json) {
    nlohmann::json out = json_of(setting, simulation);
    if (filled) out["fill"] = json_of(*filled);
    if (arguments.explain) {
      out["explanation"] = figures_json(explanation);
      out["explanation"]["text"] = explain_text(simulation.timeline, explanation);
    }
    return print_json(out);
  }
  std::cout << text_of(setting, simulation);
  if (filled) std::cout << "\n" << text_of(*filled);
  if (arguments.show) std::cout << "\n" << timeline_text({drawn}, {100, terminal_of(stdout).colour});
  if (arguments.explain) std::cout << "\n" << explanation_text(simulation.timeline, explanation);
}

}  // namespace penstock
