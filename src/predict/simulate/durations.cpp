// SPDX-License-Identifier: Apache-2.0
#include "simulate/durations.h"

#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "penstock/error.h"
#include "program/backends.h"

namespace penstock {
namespace {

std::string command_for(const Program& program, const CostContext& context) {
  return measuring_command(context, program.devices.size(), concat("--actors ", program.devices.size())) +
         ", with the configuration of this program";
}

// "F0 (F of stage 0)", by task.
std::vector<std::string> task_titles(const Program& program) {
  IdVector<TaskId, std::string> titles(program.tasks.size());
  for (std::size_t t = 0; t < titles.size(); ++t) titles[t] = program.tasks[t].name;
  std::vector<bool> known(titles.size());
  for (const DeviceProgram& device : program.devices) {
    for (const Instruction& i : device.instructions) {
      if (i.opcode != Opcode::run || !i.action || known[i.task.index()]) continue;
      known[i.task.index()] = true;
      titles[i.task] += concat(" (", name(i.kind), " of stage ", i.stage, ")");
    }
  }
  return titles;
}

std::string measured_for(const Costs& costs) {
  return concat("it was measured for ", costs.model.empty() ? "another module, or for other types, sizes or stages" : costs.model);
}

[[noreturn]] void fail_missing(const Program& program, const Costs& costs, const CostContext& context,
                               const std::vector<std::size_t>& missing) {
  const std::vector<std::string> titles = task_titles(program);
  std::vector<std::string> names;
  for (const std::size_t task : missing) names.push_back(titles[task]);
  throw Error(
      concat(context.file, " has no time for ", missing.size(), " of the ", program.tasks.size(), " tasks of program @", program.name),
      {concat("missing: ", first_few(names, 4)), measured_for(costs)}, command_for(program, context));
}

double copy_seconds(const DeviceProgram& device, const Instruction& copy, const Costs& costs, const CostContext& context) {
  const double bytes = static_cast<double>(slot_bytes(device.slots[device.operands_of(copy)[0]]));
  if (costs.copy_bandwidth > 0) return bytes / costs.copy_bandwidth;
  return context.roofline ? 2 * bytes / context.roofline->bandwidth : 0;  // read and written
}

// The link that moves what is offloaded, measured or published; none: the device's own thread does.
std::optional<Link> link_to_host(const Costs& costs, const CostContext& context) {
  if (const auto measured = costs.links.find(kHostLink); measured != costs.links.end()) return measured->second;
  return costs.copy_bandwidth == 0 && context.roofline ? context.roofline->host : std::nullopt;
}

double input_seconds(const Program& program, const DeviceProgram& device, const Instruction& input, const Costs& costs,
                     const CostContext& context) {
  const std::string& port = program.data[input.port].name;
  const auto found = costs.input_seconds.find(port);
  if (found != costs.input_seconds.end()) return found->second;
  if (context.roofline) return static_cast<double>(slot_bytes(device.slots[input.slot])) / context.roofline->bandwidth;
  throw Error(concat(context.file, " has no time for input ", quote(port), " of program @", program.name), {measured_for(costs)},
              command_for(program, context));
}

}  // namespace

std::string measuring_command(const CostContext& context, std::size_t devices, const std::string& flags) {
  const bool processes = find_backend(context.backend).processes;
  return concat("penstock ", processes ? concat("launch -n ", devices, " -- ") : "", "profile CONFIG.toml", flags.empty() ? "" : " ", flags,
                processes ? concat(" --backend ", context.backend) : "", " --out ", context.file, " measures them");
}

std::string first_few(std::vector<std::string> names, std::size_t most) {
  const std::size_t more = names.size() - std::min(most, names.size());
  names.resize(names.size() - more);
  if (more > 0) names.push_back(concat("and ", more, " more"));
  return join(names, ", ");
}

const Sample* chosen_sample(const TaskCost& cost, const CostContext& context, std::size_t devices) {
  const auto of = [](const std::optional<Sample>& sample) { return sample ? &*sample : nullptr; };
  const auto here = cost.beside.find(context.backend);
  const Sample* beside = here != cost.beside.end() ? &here->second : nullptr;
  const Sample* elsewhere = cost.beside.empty() ? nullptr : &cost.beside.begin()->second;
  const Sample *alone = of(cost.alone), *busy = of(cost.busy);

  std::vector<const Sample*> order = {beside, busy, elsewhere, alone};
  if (context.which == Measured::alone || (context.which == Measured::automatic && devices == 1)) order.insert(order.begin(), alone);
  if (context.which == Measured::busy) order.insert(order.begin(), busy);
  for (const Sample* sample : order)
    if (sample) return sample;
  return nullptr;
}

IdVector<TaskId, double> task_seconds(const Program& program, const Costs& costs, const CostContext& context) {
  std::unordered_map<std::uint64_t, const TaskCost*> by_hash;
  for (const TaskCost& cost : costs.tasks) by_hash.emplace(cost.hash, &cost);
  IdVector<TaskId, double> seconds(program.tasks.size());
  std::vector<std::size_t> missing;
  for (std::size_t t = 0; t < seconds.size(); ++t) {
    const Graph& graph = program.tasks[t].graph;
    const auto found = by_hash.find(cost_hash(graph));
    const Sample* sample = found == by_hash.end() ? nullptr : chosen_sample(*found->second, context, program.devices.size());
    if (sample) {
      seconds[t] = sample->usual();
    } else if (context.roofline) {
      seconds[t] = roofline_seconds(graph, *context.roofline);
    } else {
      missing.push_back(t);
    }
  }
  if (!missing.empty()) fail_missing(program, costs, context, missing);
  return seconds;
}

std::vector<std::int64_t> kernel_bytes(const Program& program, const Costs& costs) {
  std::unordered_map<std::uint64_t, std::int64_t> by_hash;
  for (const TaskCost& cost : costs.tasks) by_hash.emplace(cost.hash, cost.kernel_bytes);
  IdVector<TaskId, std::int64_t> by_task;
  for (const Task& task : program.tasks) {
    const auto found = by_hash.find(cost_hash(task.graph));
    by_task.push_back(found == by_hash.end() ? 0 : found->second);
  }
  std::vector<std::int64_t> out;
  for (const DeviceProgram& device : program.devices) {
    std::int64_t most = 0;
    for (const Instruction& i : device.instructions)
      if (i.opcode == Opcode::run) most = std::max(most, by_task[i.task]);
    out.push_back(most);
  }
  return out;
}

Durations durations_of(const Program& program, const Costs& costs, const CostContext& context) {
  const IdVector<TaskId, double> tasks = task_seconds(program, costs, context);
  const bool by_link = link_to_host(costs, context).has_value();
  Durations out;
  for (const DeviceProgram& device : program.devices) {
    std::vector<double>& seconds = out.emplace_back();
    seconds.reserve(device.instructions.size());
    for (const Instruction& i : device.instructions) {
      if (i.opcode == Opcode::run) {
        seconds.push_back(tasks[i.task]);
      } else if (i.opcode == Opcode::copy || (is_host_copy(i.opcode) && !by_link)) {
        seconds.push_back(copy_seconds(device, i, costs, context));
      } else {
        seconds.push_back(i.opcode == Opcode::input ? input_seconds(program, device, i, costs, context) : 0);
      }
    }
  }
  return out;
}

Link host_link(const Costs& costs, const CostContext& context) {
  return link_to_host(costs, context).value_or(Link{});
}

Network network_of(const Costs& costs, const CostContext& context) {
  const auto found = costs.links.find(context.backend);
  if (found != costs.links.end()) {
    const auto together = costs.collectives.find(context.backend);
    return {.link = found->second, .collectives = together == costs.collectives.end() ? std::map<Opcode, Link>() : together->second};
  }
  std::vector<std::string> measured;
  for (const auto& [backend, link] : costs.links) measured.push_back(backend);
  const std::string backend = find_backend(context.backend).processes ? "" : concat("--backend ", context.backend);
  throw Error(concat(context.file, " has no links of backend ", context.backend),
              {concat("measured: ", measured.empty() ? "none" : join(measured, ", "))}, measuring_command(context, 2, backend));
}

}  // namespace penstock
