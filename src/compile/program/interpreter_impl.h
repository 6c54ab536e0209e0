// SPDX-License-Identifier: Apache-2.0
// The body of advance(); included by interpreter.h only.
#pragma once

#include <algorithm>

#include "program/interpreter.h"

namespace penstock {
namespace interpreter {

// The event if it is still under way; otherwise it is forgotten.
template <class Machine>
Event pending(Event& event, Machine& machine) {
  if (event != kNoEvent && machine.done(event)) event = kNoEvent;
  return event;
}

template <class Machine>
Event pending_sends(DeviceState& state, DeviceState::SlotEvents& slot, Machine& machine) {
  while (slot.last_send >= 0) {
    const DeviceState::Send& send = state.sends[slot.last_send];
    if (send.event != kNoEvent && !machine.done(send.event)) return send.event;
    slot.last_send = send.previous;
  }
  return kNoEvent;
}

// An event that still uses the slot's memory; kNoEvent where there is none.
template <class Machine>
Event pending_use(DeviceState& state, DeviceState::SlotEvents& slot, Machine& machine) {
  if (const Event event = pending(slot.incoming, machine); event != kNoEvent) return event;
  if (const Event event = pending(slot.touched, machine); event != kNoEvent) return event;
  return pending_sends(state, slot, machine);
}

template <class Machine>
Event pending_of_run(DeviceState& state, const Instruction& instruction, Machine& machine) {
  for (SlotId operand : state.device->operands_of(instruction))
    if (const Event event = pending(state.slots[operand].incoming, machine); event != kNoEvent) return event;
  for (const Result& result : state.device->results_of(instruction)) {
    DeviceState::SlotEvents& slot = state.slots[result.slot];
    if (const Event event = pending(slot.incoming, machine); event != kNoEvent) return event;
    if (const Event event = pending_sends(state, slot, machine); event != kNoEvent) return event;
  }
  return kNoEvent;
}

// An event that still writes the slot; a transfer may read it when there is none.
template <class Machine>
Event pending_content(DeviceState::SlotEvents& slot, Machine& machine) {
  if (const Event event = pending(slot.incoming, machine); event != kNoEvent) return event;
  return pending(slot.written, machine);
}

template <class Machine>
Event pending_of_collective(DeviceState& state, const Instruction& instruction, Machine& machine) {
  for (SlotId operand : state.device->operands_of(instruction))
    if (const Event event = pending_content(state.slots[operand], machine); event != kNoEvent) return event;
  for (const Result& result : state.device->results_of(instruction))
    if (const Event event = pending_use(state, state.slots[result.slot], machine); event != kNoEvent) return event;
  return kNoEvent;
}

template <class Machine>
Event pending_of_host_copy(DeviceState& state, const Instruction& instruction, Machine& machine) {
  const SlotId from = state.device->operands_of(instruction)[0];
  if (state.device->slots[from].kind != SlotClass::host)
    if (const Event event = pending_content(state.slots[from], machine); event != kNoEvent) return event;
  return pending_use(state, state.slots[state.device->results_of(instruction)[0].slot], machine);
}

// The event that `instruction` must wait for; kNoEvent: it may start.
template <class Machine>
Event blocker(DeviceState& state, const Instruction& instruction, Machine& machine) {
  if (instruction.opcode == Opcode::run || instruction.opcode == Opcode::copy) return pending_of_run(state, instruction, machine);
  if (is_host_copy(instruction.opcode)) return pending_of_host_copy(state, instruction, machine);
  if (is_collective(instruction.opcode)) return pending_of_collective(state, instruction, machine);
  DeviceState::SlotEvents& slot = state.slots[instruction.slot];
  if (instruction.opcode == Opcode::send || instruction.opcode == Opcode::output) return pending_content(slot, machine);
  return pending_use(state, slot, machine);
}

inline void note_read(DeviceState& state, SlotId id, Event event) {
  DeviceState::SlotEvents& slot = state.slots[id];
  state.sends.push_back({event, slot.last_send});
  slot.last_send = static_cast<std::int32_t>(state.sends.size()) - 1;
}

inline void note_arrival(DeviceState& state, SlotId id, Event event) {
  DeviceState::SlotEvents& slot = state.slots[id];
  slot.incoming = event;
  slot.written = kNoEvent;
}

template <class Machine>
void execute(DeviceState& state, const Instruction& instruction, Machine& machine) {
  switch (instruction.opcode) {
    case Opcode::run:
    case Opcode::copy: {
      const Event event = machine.run(instruction);
      for (SlotId operand : state.device->operands_of(instruction)) state.slots[operand].touched = event;
      for (const Result& result : state.device->results_of(instruction)) {
        DeviceState::SlotEvents& slot = state.slots[result.slot];
        slot.written = slot.touched = event;
      }
      break;
    }
    case Opcode::send:
    case Opcode::output:
      note_read(state, instruction.slot, machine.start(instruction));
      break;
    case Opcode::recv:
    case Opcode::input:
      note_arrival(state, instruction.slot, machine.start(instruction));
      break;
    case Opcode::offload:
    case Opcode::reload: {
      const Event event = machine.start(instruction);
      note_read(state, state.device->operands_of(instruction)[0], event);
      note_arrival(state, state.device->results_of(instruction)[0].slot, event);
      break;
    }
    case Opcode::all_reduce:
    case Opcode::all_gather:
    case Opcode::reduce_scatter:
    case Opcode::broadcast:
    case Opcode::all_to_all: {
      const Event event = machine.start(instruction);
      for (SlotId operand : state.device->operands_of(instruction)) note_read(state, operand, event);
      for (const Result& result : state.device->results_of(instruction)) note_arrival(state, result.slot, event);
      break;
    }
    case Opcode::free:
      machine.release(instruction.slot);
      break;
  }
}

}  // namespace interpreter

template <class Machine>
Wait advance(DeviceState& state, Machine& machine, std::size_t stop) {
  const std::vector<Instruction>& instructions = state.device->instructions;
  const std::size_t end = std::min(stop, instructions.size());
  for (; state.next < end; ++state.next) {
    const Instruction& instruction = instructions[state.next];
    if (const Event event = interpreter::blocker(state, instruction, machine); event != kNoEvent) return {event};
    interpreter::execute(state, instruction, machine);
  }
  if (end < instructions.size()) return {kStopped};
  for (; state.idle < state.slots.size(); ++state.idle)
    if (const Event event = interpreter::pending_use(state, state.slots[state.idle], machine); event != kNoEvent) return {event};
  return {};
}

}  // namespace penstock
