// SPDX-License-Identifier: Apache-2.0
#include "program/verify.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <unordered_set>

#include "base/invariant.h"
#include "base/text.h"
#include "ops/verify.h"
#include "penstock/error.h"
#include "program/checks.h"

namespace penstock {
namespace checks {
namespace {

void check_ids(const Program& program, const DeviceProgram& device) {
  const auto in_range = [](std::int64_t id, std::size_t size) { return id >= 0 && id < static_cast<std::int64_t>(size); };
  for (const Instruction& i : device.instructions) {
    switch (i.opcode) {
      case Opcode::run:
        invariant(in_range(i.task.value, program.tasks.size()), "a run names no task");
        break;
      case Opcode::copy:
      case Opcode::offload:
      case Opcode::reload:
        invariant(i.operands == 1 && i.results == 1, "a copy has not one operand and one result");
        break;
      case Opcode::input:
        invariant(in_range(i.port, program.data.size()), "an input names no port");
        break;
      case Opcode::output:
        invariant(in_range(i.port, program.outputs.size()), "an output names no port");
        break;
      case Opcode::all_reduce:
      case Opcode::all_gather:
      case Opcode::reduce_scatter:
      case Opcode::all_to_all:
      case Opcode::broadcast:
        if (i.opcode == Opcode::broadcast)
          invariant(i.operands + i.results == 1, "a broadcast does not either give or take one slot");
        else
          invariant(i.operands == 1 && i.results == 1, "a collective has not one operand and one result");
        invariant(in_range(i.group, program.groups.size()), "a collective names no group");
        break;
      default:
        break;
    }
    if (!has_operands(i.opcode)) {
      invariant(in_range(i.slot.value, device.slots.size()), "an instruction names no slot");
      continue;
    }
    invariant(std::size_t{i.first_operand} + i.operands <= device.operands.size(), "operands lie outside their pool");
    invariant(std::size_t{i.first_result} + i.results <= device.results.size(), "results lie outside their pool");
    for (SlotId operand : device.operands_of(i)) invariant(in_range(operand.value, device.slots.size()), "an operand is no slot");
    for (const Result& result : device.results_of(i)) invariant(in_range(result.slot.value, device.slots.size()), "a result is no slot");
  }
}

// Checks that a group's members ascend, are at least two, exist, and are those of no other group: transports know a group by its members.
void check_groups(const Program& program) {
  for (std::size_t g = 0; g < program.groups.size(); ++g) {
    const std::vector<std::int32_t>& members = program.groups[g];
    const std::string shown = concat("group ", g, " (", join_devices(members), ")");
    if (members.size() < 2) throw Error(concat(shown, " has fewer than two members"));
    if (std::adjacent_find(members.begin(), members.end(), std::greater_equal<>()) != members.end())
      throw Error(concat(shown, ": its members do not ascend"));
    if (members.back() >= std::ssize(program.devices))
      throw Error(concat(shown, ": there is no device ", members.back()),
                  {concat("the program has devices 0 to ", program.devices.size() - 1)});
    const auto same = std::find(program.groups.begin(), program.groups.end(), members);
    if (const std::size_t first = same - program.groups.begin(); first != g)
      throw Error(concat(shown, " has the members of group ", first), {}, concat("give its collectives to group ", first));
  }
}

// The text form names tasks, slots and ports.
template <class List>
void check_names(const List& named, std::string_view what, std::string_view where = "") {
  std::unordered_set<std::string_view> names;
  for (const auto& one : named)
    if (!names.insert(one.name).second) throw Error(concat(where, "two ", what, "s have the name ", quote(one.name)));
}

}  // namespace

std::string place(const Program& program, int device, std::size_t instruction) {
  return concat("device ", device, ", instruction ", instruction, " (", describe(program, device, instruction), ")");
}

void check_tables(const Program& program) {
  for (const Task& task : program.tasks) verify(task.graph);
  check_names(program.tasks, "task");
  check_names(program.data, "data port");
  check_names(program.outputs, "output port");
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    const DeviceProgram& device = program.devices[d];
    check_names(device.slots, "slot", concat("device ", d, ": "));
    for (const Slot& slot : device.slots)
      invariant(slot.names.size() == (outlives_steps(slot.kind) ? slot.parts.size() : 0), "a slot's names do not match its parts");
    check_ids(program, device);
  }
  check_groups(program);
  check_states(program);
}

void check_outputs(const Program& program) {
  std::vector<std::string> given(program.outputs.size());
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (std::size_t i = 0; i < program.devices[d].instructions.size(); ++i) {
      const Instruction& instruction = program.devices[d].instructions[i];
      if (instruction.opcode != Opcode::output) continue;
      std::string& before = given[instruction.port];
      const std::string here = place(program, static_cast<int>(d), i);
      if (!before.empty()) throw Error(concat(here, ": this output is given twice"), {concat("before at ", before)});
      before = here;
    }
  for (std::size_t port = 0; port < given.size(); ++port)
    if (given[port].empty()) throw Error(concat("output ", program.outputs[port].name, " is never given"));
}

}  // namespace checks

void verify(const Program& program, const VerifyOptions& options) {
  checks::check_tables(program);
  for (int d = 0; d < std::ssize(program.devices); ++d) checks::check_definitions(program, d);
  checks::check_outputs(program);
  const checks::Transfers transfers = checks::match_transfers(program);
  checks::check_transfer_types(program, transfers);
  checks::check_collectives(program, transfers);
  if (options.model == ChannelModel::serial) checks::check_serial_order(program, transfers);
  checks::check_progress(program, transfers);
  checks::check_copies(program, transfers);
  checks::check_memory(program, options.memory_limit);
}

}  // namespace penstock
