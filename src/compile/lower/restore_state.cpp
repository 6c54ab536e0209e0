// SPDX-License-Identifier: Apache-2.0
//   device 0 has snapshot0:w[0:6]    device 1 has snapshot0:w[0:6], snapshot0:w[6:12]
//
//   0: reload %snapshot0:w[0:6] -> update %w[0:6]      1: reload %snapshot0:w[6:12] -> update %w[6:12]
#include "lower/restore_state.h"

#include <set>
#include <string>
#include <utility>

#include "program/memory_plan.h"
#include "program/snapshot_name.h"
#include "program/verify.h"

namespace penstock {
namespace {

SlotId add_slot(DeviceProgram& device, const std::string& name, const TensorType& type, SlotClass kind) {
  device.slots.push_back({.name = name, .kind = kind, .parts = {type}, .names = {name}});
  return SlotId(device.slots.size() - 1);
}

void add_reload(DeviceProgram& device, SlotId from, SlotId to) {
  device.instructions.push_back({.opcode = Opcode::reload,
                                 .first_operand = static_cast<std::uint32_t>(device.operands.size()),
                                 .operands = 1,
                                 .first_result = static_cast<std::uint32_t>(device.results.size()),
                                 .results = 1});
  device.operands.push_back(from);
  device.results.push_back({to, ResultMode::update});
}

}  // namespace

std::vector<std::vector<HeldPiece>> snapshot_of(const Program& program) {
  std::set<int> written;
  std::vector<std::vector<HeldPiece>> kept(program.devices.size());
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& instruction : device.instructions)
      if (instruction.opcode == Opcode::offload)
        for (const Result& result : device.results_of(instruction))
          if (const Slot& slot = device.slots[result.slot]; slot.kind == SlotClass::snapshot)
            written.insert(parse_snapshot_name(slot.names.front())->generation);
  for (std::size_t d = 0; d < kept.size(); ++d) {
    std::set<std::string> owned;
    for (const Slot& slot : program.devices[d].slots)
      if (slot.kind == SlotClass::state) owned.insert(slot.names.begin(), slot.names.end());
    for (const Slot& slot : program.devices[d].slots)
      for (std::size_t p = 0; slot.kind == SlotClass::snapshot && p < slot.names.size(); ++p)
        if (const auto part = parse_snapshot_name(slot.names[p]); written.contains(part->generation))
          kept[d].push_back({slot.names[p], slot.parts[p], owned.contains(part->state) ? SlotClass::state : SlotClass::copy});
  }
  return kept;
}

Program restore_state(const std::vector<std::vector<HeldPiece>>& snapshot, const Program& wanted) {
  std::vector<std::set<std::string>> names(snapshot.size());
  const std::vector<std::vector<HeldPiece>> held = held_by(wanted);
  for (std::size_t d = 0; d < std::min(held.size(), names.size()); ++d)
    for (const HeldPiece& part : held[d]) names[d].insert(part.name);
  Program out;
  out.name = "restore_state";
  out.devices.resize(snapshot.size());
  std::set<std::string> owned;
  for (std::size_t d = 0; d < snapshot.size(); ++d)
    for (const HeldPiece& part : snapshot[d]) {
      const std::string state = parse_snapshot_name(part.name).value().state;
      const bool owns = owned.insert(state).second;
      if (!owns && !names[d].contains(state)) continue;
      DeviceProgram& device = out.devices[d];
      const SlotId from = add_slot(device, part.name, part.type, SlotClass::snapshot);
      add_reload(device, from, add_slot(device, state, part.type, owns ? SlotClass::state : SlotClass::copy));
    }
  plan_memory(out);
  verify(out);
  return out;
}

}  // namespace penstock
