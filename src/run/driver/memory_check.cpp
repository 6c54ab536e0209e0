// SPDX-License-Identifier: Apache-2.0
#include "driver/memory_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

std::string size_text(std::int64_t bytes) {
  return bytes_text(static_cast<double>(bytes));
}

// Returns what a device plans: "state 1.0 MiB, a step's tensors ...".
std::string planned_text(const DeviceProgram& device) {
  return concat("state ", size_text(device.state_bytes), ", a step's tensors ", size_text(device.step_bytes), ", kernels' own ",
                size_text(device.scratch_bytes));
}

// The op that makes a part of a slot on this device: "linear of h.0.mlp.c_fc, in task F0"; or how else it comes there.
std::string maker_text(const Program& program, const DeviceProgram& device, SlotId slot, std::size_t part) {
  for (const Instruction& i : device.instructions) {
    if (i.opcode == Opcode::recv && i.slot == slot) return concat("received from device ", i.peer);
    if (i.opcode == Opcode::input && i.slot == slot) return concat("input ", program.data[i.port].name);
    std::size_t output = part;
    for (const Result& result : device.results_of(i)) {
      if (result.slot != slot) {
        output += device.slots[result.slot].parts.size();
        continue;
      }
      if (i.opcode != Opcode::run) return concat("made by ", name(i.opcode));
      const Task& task = program.tasks[i.task];
      const OpId made = producers(task.graph)[task.graph->outputs[output]];
      if (!made) return concat("made in task ", task.name);
      const Op& op = task.graph->ops[made];
      return concat("made by ", op.name, op.origin.empty() ? "" : " of " + op.origin, " in task ", task.name);
    }
  }
  return "held from step to step";
}

// The largest tensors that the device has, each line another op's or state's.
std::vector<std::string> largest_tensors(const Program& program, const DeviceProgram& device, std::size_t most) {
  struct Held {
    std::int64_t bytes;
    SlotId slot;
    std::size_t part;
  };
  std::vector<Held> held;
  for (const SlotId slot : device.slots.ids())
    for (std::size_t p = 0; p < device.slots[slot].parts.size(); ++p)
      if (!is_on_host(device.slots[slot].kind)) held.push_back({device.slots[slot].parts[p].bytes(), slot, p});
  std::ranges::stable_sort(held, std::ranges::greater{}, &Held::bytes);
  std::vector<std::string> out;
  for (std::size_t h = 0; h < held.size() && out.size() < most; ++h) {
    const Slot& slot = device.slots[held[h].slot];
    const std::string what = holds_state(slot.kind) ? concat("state ", quote(slot.names[held[h].part]))
                                                    : maker_text(program, device, held[h].slot, held[h].part);
    std::string line = concat(slot.parts[held[h].part].text(), " (", size_text(held[h].bytes), "), ", what);
    if (std::ranges::find(out, line) == out.end()) out.push_back(std::move(line));  // micro-batches look alike
  }
  return out;
}

void check_bytes(const Program& program, std::size_t devices, std::int64_t bytes, const MemoryRoom& room) {
  if (room.bytes < 0 || bytes <= room.bytes) return;
  constexpr std::size_t kShown = 8;
  std::vector<std::string> lines;
  const std::size_t count = std::min(devices, program.devices.size());
  for (std::size_t d = 0; d < std::min(count, kShown); ++d) {
    const DeviceProgram& device = program.devices[d];
    lines.push_back(concat("device ", d, " plans ", size_text(device.device_bytes()), ": ", planned_text(device),
                           device.bytes_on_host() > 0 ? concat("; and ", size_text(device.bytes_on_host()), " on the host") : ""));
  }
  if (count > kShown) lines.push_back(concat("and ", count - kShown, " devices more"));
  throw Error(concat("program ", program.name, " needs ", size_text(bytes), " of memory; ", room.limit, " is ", size_text(room.bytes)),
              lines,
              bytes <= room.all ? "something else holds the rest: another process, or other work of this one"
                                : "a smaller model or batch, more micro-batches, --recompute inputs, or more machines (--backend gloo)");
}

}  // namespace

void check_limit(const Program& program, std::int64_t limit) {
  constexpr std::size_t kTensors = 3;
  const auto fullest = std::ranges::max_element(program.devices, {}, &DeviceProgram::device_bytes);
  if (fullest == program.devices.end() || fullest->device_bytes() <= limit) return;
  std::vector<std::string> lines = {planned_text(*fullest)};
  for (const std::string& line : largest_tensors(program, *fullest, kTensors)) lines.push_back("it holds " + line);
  throw Error(concat("device ", fullest - program.devices.begin(), " needs ", size_text(fullest->device_bytes()), "; the limit is ",
                     size_text(limit)),
              lines, "split more: a larger --mesh tensor= or context=, --set layout.sequence=tensor, zero=1; or --recompute inputs");
}

PlannedBytes planned_bytes(const Program& program, std::size_t devices) {
  PlannedBytes sum;
  for (std::size_t d = 0; d < std::min(devices, program.devices.size()); ++d) {
    sum.devices += program.devices[d].device_bytes();
    sum.host += program.devices[d].bytes_on_host();
  }
  return sum;
}

void check_room(const Program& program, std::size_t devices, const PlannedBytes& held, const Rooms& rooms) {
  const PlannedBytes planned = planned_bytes(program, devices);
  const std::int64_t on_devices = planned.devices - held.devices, on_host = planned.host - held.host;
  check_bytes(program, devices, on_host + (rooms.devices ? 0 : on_devices), rooms.host);
  if (rooms.devices) check_bytes(program, devices, on_devices, *rooms.devices);
}

}  // namespace penstock
