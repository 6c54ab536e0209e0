// SPDX-License-Identifier: Apache-2.0
#include "program/memory_plan.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/invariant.h"
#include "program/offsets.h"

namespace penstock {
namespace {

// Places the slots that live across steps.
void plan_state(DeviceProgram& device) {
  device.state_bytes = device.snapshot_bytes = 0;
  for (Slot& slot : device.slots) {
    slot.offset = -1;
    if (!outlives_steps(slot.kind)) continue;
    std::int64_t& bytes = holds_state(slot.kind) ? device.state_bytes : device.snapshot_bytes;
    slot.offset = bytes;
    bytes += slot_bytes(slot);
  }
}

// By what is placed: members of an axis and devices of an actor place the same.
using Layouts = std::map<std::vector<Lifetime>, ArenaLayout>;

// Places the slots of one class that lives inside the step; returns the bytes of their arena.
std::int64_t plan_arena(DeviceProgram& device, SlotClass kind, Layouts& layouts) {
  std::vector<Lifetime> lifetimes;
  IdVector<SlotId, std::int64_t> lifetime_of(device.slots.size(), -1);
  const std::int64_t end = static_cast<std::int64_t>(device.instructions.size());
  for (std::int64_t at = 0; at < end; ++at) {
    const Instruction& instruction = device.instructions[at];
    const auto define = [&](SlotId id) {
      const Slot& slot = device.slots[id];
      if (slot.kind != kind) return;
      lifetime_of[id] = static_cast<std::int64_t>(lifetimes.size());
      lifetimes.push_back({at, end, slot_bytes(slot)});
    };
    if (defines_slot(instruction.opcode)) define(instruction.slot);
    for (const Result& result : device.results_of(instruction))
      if (result.mode == ResultMode::store) define(result.slot);
    if (instruction.opcode == Opcode::free && device.slots[instruction.slot].kind == kind) {
      const std::int64_t lifetime = lifetime_of[instruction.slot];
      invariant(lifetime >= 0, "a program frees a slot that it never defined");
      lifetimes[lifetime].end = at;
    }
  }
  const auto [known, is_new] = layouts.try_emplace(std::move(lifetimes));
  ArenaLayout& layout = known->second;
  if (is_new) layout = find_offsets(known->first);
  for (std::size_t s = 0; s < device.slots.size(); ++s)
    if (lifetime_of[s] >= 0) device.slots[s].offset = layout.offsets[lifetime_of[s]];
  return layout.bytes;
}

}  // namespace

void plan_memory(Program& program) {
  for (Task& task : program.tasks) task.scratch = plan_scratch(task.graph).bytes;
  Layouts layouts;
  for (DeviceProgram& device : program.devices) {
    plan_state(device);
    device.step_bytes = plan_arena(device, SlotClass::step, layouts);
    device.host_bytes = plan_arena(device, SlotClass::host, layouts);
    device.scratch_bytes = 0;
    for (const Instruction& instruction : device.instructions)
      if (instruction.opcode == Opcode::run) device.scratch_bytes = std::max(device.scratch_bytes, program.tasks[instruction.task].scratch);
  }
}

bool has_memory_plan(const Program& program) {
  bool has_slots = false;
  for (const DeviceProgram& device : program.devices) {
    if (std::ranges::any_of(device.slots, [](const Slot& slot) { return slot.offset >= 0; })) return true;
    has_slots = has_slots || !device.slots.empty();
  }
  return !has_slots;
}

}  // namespace penstock
