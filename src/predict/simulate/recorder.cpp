// SPDX-License-Identifier: Apache-2.0
#include "simulate/recorder.h"

#include <algorithm>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/step.h"
#include "simulate/sort_activities.h"

namespace penstock {
namespace {

// Names of what a device does beside computing: after the program's tasks in Timeline::tasks.
constexpr std::array kHostWork = {Opcode::send,           Opcode::recv,      Opcode::input,      Opcode::output,
                                  Opcode::offload,        Opcode::reload,    Opcode::all_reduce, Opcode::all_gather,
                                  Opcode::reduce_scatter, Opcode::broadcast, Opcode::all_to_all};

}  // namespace

IdVector<SlotId, MemoryClass> memory_classes(const DeviceProgram& device) {
  IdVector<SlotId, MemoryClass> out(device.slots.size(), MemoryClass::activations);
  bool loop_seen = false;
  for (const Instruction& instruction : device.instructions) {
    loop_seen = loop_seen || instruction.action;
    if (instruction.opcode == Opcode::recv) out[instruction.slot] = MemoryClass::communication;
    if (instruction.opcode == Opcode::all_gather) out[device.results_of(instruction)[0].slot] = MemoryClass::parameters;
    if (instruction.opcode == Opcode::reduce_scatter) out[device.results_of(instruction)[0].slot] = MemoryClass::gradients;
    for (const Result& result : device.results_of(instruction))
      if (result.mode == ResultMode::add || (loop_seen && !instruction.action && !is_collective(instruction.opcode)))
        out[result.slot] = MemoryClass::gradients;
  }
  for (std::size_t s = 0; s < device.slots.size(); ++s) {
    const Slot& slot = device.slots[s];
    if (holds_state(slot.kind))
      out[s] = !slot.names.empty() && is_kept_by_optimiser(slot.names.front()) ? MemoryClass::optimiser : MemoryClass::parameters;
  }
  return out;
}

double bytes_beside(const DeviceProgram& device, const Instruction& instruction) {
  std::int64_t bytes = 0;
  for (const SlotId operand : device.operands_of(instruction)) bytes = std::max(bytes, slot_bytes(device.slots[operand]));
  for (const Result& result : device.results_of(instruction)) bytes = std::max(bytes, slot_bytes(device.slots[result.slot]));
  return static_cast<double>(bytes);
}

Recorder::Recorder(const Program& program) : program_(program) {
  timeline_.title = program.name;
  for (const Task& task : program.tasks) timeline_.tasks.push_back(task.name);
  for (Opcode opcode : kHostWork) timeline_.tasks.push_back(std::string(name(opcode)));
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    const DeviceProgram& device = program.devices[d];
    timeline_.devices.push_back(concat("device ", d));
    classes_.push_back(memory_classes(device));
    MemoryPoint& begin = timeline_.memory.emplace_back(1).front();
    for (std::size_t s = 0; s < device.slots.size(); ++s)
      if (holds_state(device.slots[s].kind))
        begin.amount[static_cast<std::size_t>(classes_[d][s])] += static_cast<double>(slot_bytes(device.slots[s]));
  }
}

Activity Recorder::describe(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause) const {
  Activity activity;
  activity.begin = begin;
  activity.end = end;
  activity.device = static_cast<std::int32_t>(device);
  activity.action = instruction.action;
  activity.kind = instruction.kind;
  activity.stage = instruction.stage;
  activity.microbatch = instruction.microbatch;
  activity.item = static_cast<std::int32_t>(&instruction - program_.devices[device].instructions.data());
  activity.cause = cause;
  return activity;
}

std::int64_t Recorder::add(const Activity& activity) {
  timeline_.activities.push_back(activity);
  return static_cast<std::int64_t>(timeline_.activities.size()) - 1;
}

std::int64_t Recorder::run(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause) {
  Activity activity = describe(device, instruction, begin, end, cause);
  for (const Result& result : program_.devices[device].results_of(instruction))
    if (result.mode == ResultMode::store) define(device, result.slot, begin);
  if (instruction.opcode == Opcode::run) {
    activity.task = static_cast<std::int32_t>(instruction.task.value);
    const auto scratch = static_cast<double>(program_.tasks[instruction.task].scratch);
    change(device, MemoryClass::scratch, begin, scratch);
    change(device, MemoryClass::scratch, end, -scratch);
  }
  return add(activity);
}

std::int64_t Recorder::host(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause) {
  Activity activity = describe(device, instruction, begin, end, cause);
  activity.lane = Lane::host;
  activity.task = host_work(instruction.opcode);
  return add(activity);
}

std::int64_t Recorder::beside(std::size_t device, const Instruction& instruction, double begin, double end, std::int64_t cause) {
  Activity activity = describe(device, instruction, begin, end, cause);
  activity.lane = Lane::transfer;
  activity.peer = activity.device;
  activity.task = host_work(instruction.opcode);
  activity.bytes = bytes_beside(program_.devices[device], instruction);
  return add(activity);
}

std::int32_t Recorder::host_work(Opcode opcode) const {
  const auto* work = std::find(kHostWork.begin(), kHostWork.end(), opcode);
  return static_cast<std::int32_t>(program_.tasks.size()) + static_cast<std::int32_t>(work - kHostWork.begin());
}

std::int64_t Recorder::transfer(std::size_t device, const Instruction& send, double begin, double end, std::int64_t cause) {
  Activity activity = describe(device, send, begin, end, cause);
  activity.lane = Lane::transfer;
  activity.peer = send.peer;
  activity.bytes = static_cast<double>(slot_bytes(program_.devices[device].slots[send.slot]));
  return add(activity);
}

void Recorder::change(std::size_t device, SlotId slot, double time, double sign) {
  const Slot& changed = program_.devices[device].slots[slot];
  if (changed.kind == SlotClass::step) change(device, classes_[device][slot], time, sign * static_cast<double>(slot_bytes(changed)));
}

void Recorder::change(std::size_t device, MemoryClass memory, double time, double bytes) {
  std::vector<MemoryPoint>& curve = timeline_.memory[device];
  if (curve.back().time < time) {
    curve.push_back(curve.back());
    curve.back().time = time;
  }
  curve.back().amount[static_cast<std::size_t>(memory)] += bytes;
}

Timeline Recorder::take(double makespan) {
  timeline_.makespan = makespan;
  sort_by_begin(timeline_.activities);
  return std::move(timeline_);
}

}  // namespace penstock
