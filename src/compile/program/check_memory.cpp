// SPDX-License-Identifier: Apache-2.0
// Checks the memory plan: places inside the arenas, no overlap between slots that live at the same time, the limit.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/memory_plan.h"

namespace penstock::checks {
namespace {

// The slots that live now, by place. Adding one that overlaps another is an error.
class Live {
 public:
  Live(const Program& program, int number) : number_(number), device_(program.devices[number]) {}

  void define(SlotId id, std::int64_t arena_bytes) {
    const Slot& slot = device_.slots[id];
    const std::int64_t bytes = slot_bytes(slot);
    if (slot.offset % kAlignment != 0 || slot.offset > arena_bytes - bytes)
      throw Error(concat("device ", number_, ": slot %", slot.name, " does not fit its arena"),
                  {concat("it lies at ", slot.offset, " and has ", bytes, " bytes; the arena has ", arena_bytes,
                          " bytes; places are multiples of ", kAlignment)});
    if (bytes == 0) return;
    const auto after = by_offset_.lower_bound(slot.offset);
    if (after != by_offset_.end() && device_.slots[after->second].offset < slot.offset + bytes) overlap(id, after->second);
    if (after != by_offset_.begin()) {
      const Slot& before = device_.slots[std::prev(after)->second];
      if (before.offset + slot_bytes(before) > slot.offset) overlap(id, std::prev(after)->second);
    }
    by_offset_.emplace_hint(after, slot.offset, id);
  }

  void end(SlotId id) {
    if (slot_bytes(device_.slots[id]) > 0) by_offset_.erase(device_.slots[id].offset);
  }

 private:
  [[noreturn]] void overlap(SlotId a, SlotId b) const {
    const auto range = [&](SlotId id) {
      const Slot& slot = device_.slots[id];
      return concat("%", slot.name, " has bytes ", slot.offset, " to ", slot.offset + slot_bytes(slot));
    };
    throw Error(concat("device ", number_, ": slots %", device_.slots[a].name, " and %", device_.slots[b].name,
                       " live at the same time in the same place"),
                {range(a), range(b)});
  }

  int number_;
  const DeviceProgram& device_;
  std::map<std::int64_t, SlotId> by_offset_;
};

void check_places(const Program& program, int number) {
  const DeviceProgram& device = program.devices[number];
  Live state(program, number), step(program, number), host(program, number), snapshots(program, number);
  for (std::size_t s = 0; s < device.slots.size(); ++s) {
    if (holds_state(device.slots[s].kind)) state.define(SlotId(s), device.state_bytes);
    if (device.slots[s].kind == SlotClass::snapshot) snapshots.define(SlotId(s), device.snapshot_bytes);
  }
  const auto define = [&](SlotId id) {
    if (device.slots[id].kind == SlotClass::step) step.define(id, device.step_bytes);
    if (device.slots[id].kind == SlotClass::host) host.define(id, device.host_bytes);
  };
  for (const Instruction& i : device.instructions) {
    if (defines_slot(i.opcode)) define(i.slot);
    if (i.opcode == Opcode::free) (device.slots[i.slot].kind == SlotClass::host ? host : step).end(i.slot);
    for (const Result& result : device.results_of(i))
      if (result.mode == ResultMode::store) define(result.slot);
  }
}

// Checks that tasks have the scratch that their temporaries need.
void check_tasks(const Program& program) {
  for (const Task& task : program.tasks)
    if (const std::int64_t needed = plan_scratch(task.graph).bytes; task.scratch < needed)
      throw Error(concat("task @", task.name, " has too little scratch"),
                  {concat("its temporaries need ", needed, " bytes; it has ", task.scratch)});
}

void check_scratch(const Program& program, int number) {
  const DeviceProgram& device = program.devices[number];
  for (std::size_t i = 0; i < device.instructions.size(); ++i) {
    if (device.instructions[i].opcode != Opcode::run) continue;
    const Task& task = program.tasks[device.instructions[i].task];
    if (task.scratch > device.scratch_bytes)
      throw Error(concat(place(program, number, i), ": the task's scratch does not fit"),
                  {concat("task @", task.name, " needs ", task.scratch, " bytes; the device has ", device.scratch_bytes)});
  }
}

}  // namespace

void check_memory(const Program& program, std::int64_t memory_limit) {
  if (!has_memory_plan(program)) {
    if (memory_limit < 0) return;
    throw Error(concat("program @", program.name, " has no memory plan"), {"its slots have no places, so what a device needs is not known"},
                "leave out the memory limit, or lower the program again");
  }
  check_tasks(program);
  for (int d = 0; d < std::ssize(program.devices); ++d) {
    const DeviceProgram& device = program.devices[d];
    const auto homeless = std::ranges::find_if(device.slots, [](const Slot& slot) { return slot.offset < 0; });
    if (homeless != device.slots.end()) throw Error(concat("device ", d, ": slot %", homeless->name, " has no place, though others have"));
    check_places(program, d);
    check_scratch(program, d);
    if (memory_limit >= 0 && device.device_bytes() > memory_limit)
      throw Error(concat("device ", d, " needs ", device.device_bytes(), " bytes; the limit is ", memory_limit),
                  {concat("state ", device.state_bytes, ", step ", device.step_bytes, ", scratch ", device.scratch_bytes)});
  }
}

}  // namespace penstock::checks
