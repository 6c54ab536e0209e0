// The memory plan: places inside the arenas, no overlap of what lives at the same time, the limit.
#include <algorithm>
#include <map>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"

namespace penstock::checks {
namespace {

// Slots that live now, by place; they never overlap.
class Live {
 public:
  Live(const Program& program, int number) : number_(number), device_(program.devices[static_cast<std::size_t>(number)]) {}

  void define(SlotId id, std::int64_t arena_bytes) {
    const Slot& slot = device_.slots[id.index()];
    const std::int64_t bytes = slot_bytes(slot);
    if (slot.offset % kAlignment != 0 || slot.offset > arena_bytes - bytes)
      throw Error(concat("device ", number_, ": slot %", slot.name, " does not fit its arena"),
                  {concat("it lies at ", slot.offset, " and has ", bytes, " bytes; the arena has ", arena_bytes,
                          " bytes; places are multiples of ", kAlignment)});
    if (bytes == 0) return;
    const auto after = by_offset_.lower_bound(slot.offset);
    if (after != by_offset_.end() && device_.slots[after->second.index()].offset < slot.offset + bytes) overlap(id, after->second);
    if (after != by_offset_.begin()) {
      const Slot& before = device_.slots[std::prev(after)->second.index()];
      if (before.offset + slot_bytes(before) > slot.offset) overlap(id, std::prev(after)->second);
    }
    by_offset_.emplace_hint(after, slot.offset, id);
  }

  void end(SlotId id) {
    if (slot_bytes(device_.slots[id.index()]) > 0) by_offset_.erase(device_.slots[id.index()].offset);
  }

 private:
  [[noreturn]] void overlap(SlotId a, SlotId b) const {
    const auto range = [&](SlotId id) {
      const Slot& slot = device_.slots[id.index()];
      return concat("%", slot.name, " has bytes ", slot.offset, " to ", slot.offset + slot_bytes(slot));
    };
    throw Error(concat("device ", number_, ": slots %", device_.slots[a.index()].name, " and %", device_.slots[b.index()].name,
                       " live at the same time in the same place"),
                {range(a), range(b)});
  }

  int number_;
  const DeviceProgram& device_;
  std::map<std::int64_t, SlotId> by_offset_;
};

void check_places(const Program& program, int number) {
  const DeviceProgram& device = program.devices[static_cast<std::size_t>(number)];
  Live state(program, number), step(program, number), host(program, number);
  for (std::size_t s = 0; s < device.slots.size(); ++s)
    if (holds_state(device.slots[s].kind)) state.define(SlotId(static_cast<std::int64_t>(s)), device.state_bytes);
  const auto define = [&](SlotId id) {
    if (device.slots[id.index()].kind == SlotClass::step) step.define(id, device.step_bytes);
    if (device.slots[id.index()].kind == SlotClass::host) host.define(id, device.host_bytes);
  };
  for (const Instruction& i : device.instructions) {
    if (i.opcode == Opcode::recv || i.opcode == Opcode::input) define(i.slot);
    if (i.opcode == Opcode::free) (device.slots[i.slot.index()].kind == SlotClass::host ? host : step).end(i.slot);
    for (const Result& result : device.results_of(i))
      if (result.mode == ResultMode::store) define(result.slot);
  }
}

void check_scratch(const Program& program, int number) {
  const DeviceProgram& device = program.devices[static_cast<std::size_t>(number)];
  for (std::size_t i = 0; i < device.instructions.size(); ++i) {
    if (device.instructions[i].opcode != Opcode::run) continue;
    const Task& task = program.tasks[device.instructions[i].task.index()];
    if (task.scratch > device.scratch_bytes)
      throw Error(concat(place(program, number, i), ": the task's scratch does not fit"),
                  {concat("task @", task.name, " needs ", task.scratch, " bytes; the device has ", device.scratch_bytes)});
  }
}

}  // namespace

void check_memory(const Program& program, int number, std::int64_t memory_limit) {
  const DeviceProgram& device = program.devices[static_cast<std::size_t>(number)];
  const auto planned = [](const Slot& slot) { return slot.offset >= 0; };
  if (std::any_of(device.slots.begin(), device.slots.end(), planned)) {
    const auto it = std::find_if_not(device.slots.begin(), device.slots.end(), planned);
    if (it != device.slots.end()) throw Error(concat("device ", number, ": slot %", it->name, " has no place, though others have"));
    check_places(program, number);
    check_scratch(program, number);
  }
  if (memory_limit >= 0 && device.device_bytes() > memory_limit)
    throw Error(concat("device ", number, " needs ", device.device_bytes(), " bytes; the limit is ", memory_limit),
                {concat("state ", device.state_bytes, ", step ", device.step_bytes, ", scratch ", device.scratch_bytes)});
}

}  // namespace penstock::checks
