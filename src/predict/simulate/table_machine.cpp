// SPDX-License-Identifier: Apache-2.0
#include "simulate/table_machine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>

#include "base/text.h"
#include "penstock/error.h"
#include "rules/load_schedule.h"
#include "schedule/kinds.h"
#include "simulate/table_costs.h"

namespace penstock {
namespace {

std::vector<double> over_their_mean(const std::vector<double>& values, std::size_t count) {
  if (values.empty()) return std::vector<double>(count, 1);
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  std::vector<double> out;
  for (const double value : values) out.push_back(value * static_cast<double>(count) / sum);
  return out;
}

UnitCosts units_of(const TableNumbers& numbers) {
  UnitCosts costs;
  costs.forward = numbers.forward.value_or(1);
  const double backward = numbers.backward.value_or(2);
  costs.input = numbers.input.value_or(backward / 2);
  costs.weight = numbers.weight.value_or(backward / 2);
  costs.backward = numbers.backward ? backward : costs.input + costs.weight;
  costs.bytes = numbers.bytes.value_or(0);
  return costs;
}

// Puts what concerns memory, of stages that are each `share` of an actor, into the costs of each stage or of each of its `slices`.
void add_memory_costs(const TableNumbers& numbers, double share, std::int32_t slices, TableCosts& costs) {
  const double times = numbers.per_stage ? 1 : share;
  const auto set = [&](const std::optional<double>& value, std::initializer_list<Kind> kinds) {
    if (!value) return;
    for (StageCosts& stage : costs.stages)
      for (const Kind kind : kinds) stage.of(kind) = (needs_microbatch(kind) ? times / slices : times) * *value;
  };
  set(numbers.recompute, {Kind::R});
  set(numbers.offload, {Kind::OFFLOAD, Kind::RELOAD});
  set(numbers.gather, {Kind::UNSHARD});
  set(numbers.reduce, {Kind::REDUCE_GRAD});
  for (StageCosts& stage : costs.stages) {
    stage.kept = stage.live * numbers.kept.value_or(0);
    stage.parameters = share * numbers.parameters.value_or(0);
  }
}

// A part of a stage's costs: `time` of its time, and `amount` of all else. What is of a whole stage stays so.
StageCosts part_of_stage(StageCosts stage, double time, double amount) {
  for (std::size_t k = 0; k < stage.time.size(); ++k)
    if (needs_microbatch(static_cast<Kind>(k))) stage.time[k] *= time;
  for (double* value : {&stage.forward_bytes, &stage.backward_bytes, &stage.weight_bytes, &stage.gradient_bytes, &stage.live, &stage.kept})
    *value *= amount;
  return stage;
}

// The costs of each part from those of whole stages: to each slice an equal share, but for `times`. A slice that is attention alone, as
// blocks of it are apart, has one for each slice before it and half a one of its own, and each takes as long.
TableCosts costs_of_parts(const TableCosts& whole, const Schedule& schedule, const std::vector<double>& times) {
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
    out.stages.push_back(
        part_of_stage(whole.stages[static_cast<std::size_t>(part.stage)], times[static_cast<std::size_t>(part.slice)] * share, share));
  }
  return out;
}

// The links that are given, or were measured where the numbers do not say them.
Network links_of(const TableNumbers& numbers, std::size_t actors) {
  if (!numbers.measured) return with_given_links(numbers, {});
  const CostContext context{.file = numbers.file, .backend = numbers.backend};
  return with_given_links(numbers, actors > 1 && !numbers.latency ? network_of(*numbers.measured, context) : Network{});
}

void set_all_bytes(const TableNumbers& numbers, std::int32_t slices, TableCosts& costs) {
  const double bytes = numbers.bytes.value_or(0) / slices;
  for (StageCosts& stage : costs.stages) stage.forward_bytes = stage.backward_bytes = stage.weight_bytes = stage.gradient_bytes = bytes;
}

void scale_stages(const TableNumbers& numbers, TableCosts& costs) {
  const std::vector<double> times = over_their_mean(numbers.stage_times, costs.stages.size());
  for (std::size_t s = 0; s < times.size(); ++s)
    for (double& time : costs.stages[s].time) time *= times[s];
}

// Stages that cost alike, each `share` of an actor.
TableCosts chain_by_numbers(std::int32_t stages, double share, const TableNumbers& numbers) {
  TableCosts costs = uniform_costs(stages, units_of(numbers), numbers.per_stage ? 1 : share);
  for (StageCosts& stage : costs.stages) stage.live = share;
  return costs;
}

TableCosts costs_by_numbers(const Schedule& schedule, const TableNumbers& numbers) {
  const std::int32_t stages = schedule.whole_stages();
  const double share = static_cast<double>(schedule.actors.size()) / static_cast<double>(stages - std::ssize(schedule.forward_times));
  TableCosts costs = chain_by_numbers(stages, share, numbers);
  for (std::size_t s = 0; s < schedule.forward_times.size(); ++s)
    for (double& time : costs.stages[s].time) time *= schedule.forward_times[s];
  add_memory_costs(numbers, share, 1, costs);
  scale_stages(numbers, costs);
  return costs_of_parts(costs, schedule, over_their_mean(numbers.slice_times, static_cast<std::size_t>(schedule.slices)));
}

TableCosts measured_costs(const Schedule& schedule, const TableNumbers& numbers) {
  TableCosts costs = table_costs_of(*numbers.measured, schedule, {.file = numbers.file, .backend = numbers.backend});
  set_all_bytes(numbers, schedule.slices, costs);
  const double share = static_cast<double>(schedule.actors.size()) * schedule.slices / schedule.stages();
  add_memory_costs(numbers, share, schedule.slices, costs);
  return costs;
}

// A table that runs one micro-batch after the other, with B, or with I and W: it shows which costs were measured.
Schedule one_by_one(const ScheduleOptions& shape, bool split) {
  return make_schedule("sequential", {.actors = shape.actors,
                                      .microbatches = 1,
                                      .chunks = shape.chunks,
                                      .forward_only = shape.forward_only,
                                      .split_backward = split && !shape.forward_only});
}

// The costs of a chain of stages of the kinds of backward that were measured; `split`: set to whether I and W were.
TableCosts measured_chain(const ScheduleOptions& shape, const TableNumbers& numbers, bool& split) {
  const CostContext context{.file = numbers.file, .backend = numbers.backend};
  TableCosts costs = table_costs_of(*numbers.measured, one_by_one(shape, false), context);
  try {
    const TableCosts halves = table_costs_of(*numbers.measured, one_by_one(shape, true), context);
    for (std::size_t s = 0; s < halves.stages.size(); ++s)
      for (const Kind kind : {Kind::I, Kind::W}) costs.stages[s].of(kind) = halves.stages[s].of(kind);
  } catch (const Error&) {
    split = false;
  }
  set_all_bytes(numbers, 1, costs);
  return costs;
}

// A problem of which only the limits are set, and what its table may do to keep them.
SearchProblem limited(const SearchNumbers& search, const TableNumbers& numbers) {
  SearchProblem problem;
  problem.memory_limit = search.activation_limit;
  problem.copies = search.copies;
  problem.staleness = search.staleness;
  problem.recompute = search.recompute;
  problem.offload = search.offload;
  problem.order_transfers = search.order_transfers;
  problem.sharded = numbers.gather.has_value();
  return problem;
}

void for_every_link(Network& network, const std::function<void(Link&)>& change) {
  change(network.link);
  for (auto& [pair, link] : network.between) change(link);
}

// The time of one micro-batch in a stage: F and B, or I and W.
double time_of_stage(const StageCosts& stage) {
  return stage.of(Kind::F) + std::max(stage.of(Kind::B), stage.of(Kind::I) + stage.of(Kind::W));
}

// None where all take as long.
std::optional<std::int32_t> dearest_stage(const std::vector<StageCosts>& stages) {
  const auto [cheapest, dearest] =
      std::minmax_element(stages.begin(), stages.end(), [](const auto& a, const auto& b) { return time_of_stage(a) < time_of_stage(b); });
  if (!(time_of_stage(*cheapest) < time_of_stage(*dearest))) return std::nullopt;
  return static_cast<std::int32_t>(dearest - stages.begin());
}

}  // namespace

TableMachine machine_of(const Schedule& schedule, const TableNumbers& numbers) {
  TableMachine out;
  out.costs = numbers.measured ? measured_costs(schedule, numbers) : costs_by_numbers(schedule, numbers);
  out.options.network = links_of(numbers, schedule.actors.size());
  out.options.disturbance = {.jitter = numbers.jitter, .seed = numbers.seed, .slowdown = numbers.slowdown};
  out.options.atomic_pairs = numbers.atomic_pairs;
  return out;
}

Network with_given_links(const TableNumbers& numbers, Network network) {
  if (numbers.latency) network.link.latency = *numbers.latency;
  if (numbers.bandwidth) network.link.bandwidth = *numbers.bandwidth;
  for (const NumberedLink& given : numbers.links) {
    Link link = network.link;
    link.latency = given.latency.value_or(link.latency);
    link.bandwidth = given.bandwidth.value_or(link.bandwidth);
    network.between[{given.a, given.b}] = network.between[{given.b, given.a}] = link;
  }
  return network;
}

Schedule sharded_by(const TableNumbers& numbers, Schedule schedule) {
  return numbers.gather ? with_gathers(std::move(schedule)) : std::move(schedule);
}

Schedule table_by(const Rules& rules, const ScheduleOptions& options, const TableNumbers& numbers) {
  const TableMachine machine = machine_of(make_schedule(rules, options), numbers);
  return schedule_by(rules, options, machine.costs, machine.options.network).schedule;
}

double SimulatedTable::busiest() const {
  return time.busy.empty() ? 0 : *std::ranges::max_element(time.busy);
}

double SimulatedTable::lower_bound() const {
  return std::max(busiest(), dependencies);
}

SimulatedTable simulated_table(Schedule schedule, const TableNumbers& numbers, bool record) {
  SimulatedTable out;
  out.schedule = sharded_by(numbers, std::move(schedule));
  out.shape = shape_of(out.schedule);
  validate(out.schedule, out.shape);
  out.machine = machine_of(out.schedule, numbers);
  out.seconds = numbers.measured || numbers.in_seconds;
  out.dependencies = dependency_bound(out.schedule, out.shape, out.machine.costs, out.machine.options);
  TableOptions options = out.machine.options;
  options.record = record;
  out.time = time_table(out.schedule, out.shape, out.machine.costs, options);
  if (!std::isfinite(out.time.makespan))
    throw Error("the step takes longer than a number can say", {"its times add up to more than 1.8e308"},
                "smaller times: in seconds, or relative to a forward's");
  if (record) out.timeline = drawn_table(out.schedule, out.shape, out.machine.costs, out.time, out.seconds);
  return out;
}

Timeline drawn_table(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableTime& time, bool seconds) {
  Timeline timeline = timeline_of(schedule, shape, costs, time);
  timeline.seconds = seconds;
  if (seconds) timeline.memory.clear();
  return timeline;
}

SearchProblem problem_of(const ScheduleOptions& shape, const SearchNumbers& search, const TableNumbers& numbers) {
  const std::int32_t stages = shape.actors * shape.chunks;
  const double share = static_cast<double>(shape.actors) / stages;
  SearchProblem problem = limited(search, numbers);
  problem.actors = shape.actors;
  problem.microbatches = shape.microbatches * shape.window;
  problem.steps = shape.window;
  problem.shape = chain(stages, shape.forward_only);
  problem.costs = numbers.measured ? measured_chain(shape, numbers, problem.split) : chain_by_numbers(stages, share, numbers);
  problem.network = links_of(numbers, static_cast<std::size_t>(shape.actors));
  add_memory_costs(numbers, share, 1, problem.costs);
  scale_stages(numbers, problem.costs);
  return problem;
}

SearchProblem problem_of(const Schedule& schedule, const SearchNumbers& search, const TableNumbers& numbers) {
  SearchProblem problem = limited(search, numbers);
  problem.shape = shape_of(schedule);
  problem.actors = static_cast<int>(schedule.actors.size());
  problem.microbatches = schedule.microbatches();
  problem.steps = schedule.steps;
  TableMachine machine = machine_of(schedule, numbers);
  problem.costs = std::move(machine.costs);
  problem.network = std::move(machine.options.network);
  return problem;
}

std::vector<Variant> better_machines(const SimulatedTable& table) {
  const TableMachine& machine = table.machine;
  std::vector<Variant> out;
  const auto add = [&](const std::string& name, std::function<void(TableMachine&)> change) {
    out.push_back({name, [&table, change] {
                     TableMachine changed = table.machine;
                     change(changed);
                     return time_table(table.schedule, table.shape, changed.costs, changed.options).makespan;
                   }});
  };
  bool latency = false, bandwidth = false;
  Network network = machine.options.network;
  for_every_link(network, [&](Link& link) {
    latency = latency || link.latency > 0;
    bandwidth = bandwidth || std::isfinite(link.bandwidth);
  });
  const auto set_links = [&](const std::string& name, void (*change)(Link&)) {
    add(name, [change](TableMachine& m) { for_every_link(m.options.network, change); });
  };
  if (latency) set_links("no latency", [](Link& link) { link.latency = 0; });
  if (bandwidth) set_links("unlimited bandwidth", [](Link& link) { link.bandwidth = Link().bandwidth; });
  const std::vector<double>& busy = table.time.busy;
  const auto busiest = static_cast<std::size_t>(std::max_element(busy.begin(), busy.end()) - busy.begin());
  add(concat("actor ", busiest, " 10 % faster"), [busiest, actors = busy.size()](TableMachine& m) {
    m.options.disturbance.slowdown.resize(actors, 1);
    m.options.disturbance.slowdown[busiest] /= 1.1;
  });
  if (const std::optional<std::int32_t> stage = dearest_stage(machine.costs.stages)) {
    add(concat("stage ", stage_text(*stage, table.schedule.slices, table.schedule.blocks), " 10 % faster"), [stage](TableMachine& m) {
      for (double& cost : m.costs.stages[static_cast<std::size_t>(*stage)].time) cost /= 1.1;
    });
  }
  if (!machine.options.disturbance.slowdown.empty()) add("no straggler", [](TableMachine& m) { m.options.disturbance.slowdown.clear(); });
  return out;
}

}  // namespace penstock
