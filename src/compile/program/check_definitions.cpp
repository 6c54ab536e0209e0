// SPDX-License-Identifier: Apache-2.0
// Checks definitions, uses and types on one device, in program order.
#include <ranges>
#include <span>

#include "base/text.h"
#include "base/words.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "program/checks.h"

namespace penstock::checks {
namespace {

// The instruction that is being checked.
struct Here {
  const Program& program;
  const int number;  // of the device
  const DeviceProgram& device;
  const std::size_t at;
  const Instruction& i = device.instructions[at];

  const Slot& slot(SlotId id) const { return device.slots[id.index()]; }
  [[noreturn]] void fail(const std::string& what, const std::vector<std::string>& details = {}, const std::string& hint = {}) const {
    throw Error(concat(place(program, number, at), ": ", what), details, hint);
  }
};

// The state of one device's slots before the next instruction.
class Lifetimes {
 public:
  explicit Lifetimes(const DeviceProgram& device) : slots_(device.slots.size()) {
    for (std::size_t s = 0; s < slots_.size(); ++s)
      if (outlives_steps(device.slots[s].kind)) slots_[s].state = State::defined;
  }

  // A read by anything but a host copy.
  void read(const Here& here, SlotId id) const {
    if (here.i.opcode != Opcode::send || here.slot(id).kind != SlotClass::snapshot) check_on_device(here, id);
    reach_sum(here, id);
  }
  // Nobody reads, overwrites or frees a sum that lacks terms.
  void reach_sum(const Here& here, SlotId id) const {
    reach(here, id);
    const Slot& slot = here.slot(id);
    if (slots_[id.index()].terms < slot.terms)
      here.fail(concat("slot %", slot.name, " is a sum of ", slot.terms, " terms, and has ", slots_[id.index()].terms, " of them here"));
  }
  void reach(const Here& here, SlotId id) const {
    const SlotState& state = slots_[id.index()];
    if (state.state == State::undefined) here.fail(concat("slot %", here.slot(id).name, " is used before it is defined"));
    if (state.state == State::freed)
      here.fail(concat("slot %", here.slot(id).name, " is used after it was freed"), {concat("freed at instruction ", state.freed)});
  }

  void define(const Here& here, SlotId id) {
    check_on_device(here, id);
    fill(here, id);
  }
  void fill(const Here& here, SlotId id) {
    SlotState& state = slots_[id.index()];
    if (outlives_steps(here.slot(id).kind))
      here.fail(concat("slot %", here.slot(id).name, " holds a ", held(here, id), ", which is defined from the start"), {}, "update it");
    if (state.state != State::undefined)
      here.fail(concat("slot %", here.slot(id).name, " is defined twice"), {concat("before at instruction ", state.defined)});
    state.state = State::defined;
    state.defined = here.at;
    state.terms = 1;
  }

  void free(const Here& here, SlotId id) {
    reach_sum(here, id);
    if (outlives_steps(here.slot(id).kind))
      here.fail(concat("slot %", here.slot(id).name, " holds a ", held(here, id), ", which is never freed"));
    slots_[id.index()].state = State::freed;
    slots_[id.index()].freed = here.at;
  }

  // All operands are read before any result is written.
  void read_and_write(const Here& here) {
    const auto now = static_cast<std::int64_t>(here.at);
    for (SlotId operand : here.device.operands_of(here.i)) {
      read(here, operand);
      slots_[operand.index()].read_by = now;
    }
    for (const auto& [slot, mode] : here.device.results_of(here.i)) {
      SlotState& state = slots_[slot.index()];
      if (mode == ResultMode::store) {
        define(here, slot);
      } else {
        check_on_device(here, slot);
        mode == ResultMode::add ? reach(here, slot) : reach_sum(here, slot);
        if (state.written_by == now) here.fail(concat("slot %", here.slot(slot).name, " is written twice by one instruction"));
        if (mode == ResultMode::add && state.read_by == now)
          here.fail(concat("slot %", here.slot(slot).name, " is both read and added to"), {}, "update it");
        if (mode == ResultMode::add && ++state.terms > here.slot(slot).terms)
          here.fail(
              concat("slot %", here.slot(slot).name, " is a sum of ", counted(here.slot(slot).terms, "term"), ", and has them already"));
      }
      state.written_by = now;
    }
  }

  void check_end(const DeviceProgram& device, int number) const {
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      const Slot& slot = device.slots[s];
      if (slots_[s].state == State::undefined) throw Error(concat("device ", number, ": slot %", slot.name, " is never defined"));
      if (slots_[s].state == State::defined && !outlives_steps(slot.kind))
        throw Error(concat("device ", number, ": slot %", slot.name, " is never freed"),
                    {concat("defined at instruction ", slots_[s].defined)});
    }
  }

 private:
  enum class State : std::uint8_t { undefined, defined, freed };
  struct SlotState {
    State state = State::undefined;
    std::int32_t terms = 1;                      // of its sum
    std::size_t defined = 0, freed = 0;          // numbers of instructions
    std::int64_t read_by = -1, written_by = -1;  // the last run or copy that reads it, and that writes it
  };

  static std::string_view held(const Here& here, SlotId id) { return here.slot(id).kind == SlotClass::snapshot ? "snapshot" : "state"; }
  static void check_on_device(const Here& here, SlotId id) {
    if (is_on_host(here.slot(id).kind)) here.fail(concat("slot %", here.slot(id).name, " lies in the host's memory"), {}, "reload it");
  }

  std::vector<SlotState> slots_;
};

// The names of what a run's slots are, and of the values of the task that their parts are.
struct PartRoles {
  std::string_view slot, value;
};

// Checks that the parts of the slots, in order, are the graph's values.
template <class Slots>
void check_parts(const Here& here, const Task& task, const PartRoles& roles, std::span<const ValueId> values, const Slots& slots) {
  std::size_t parts = 0;
  for (const SlotId id : slots) {
    const Slot& part_of = here.slot(id);
    for (std::size_t p = 0; p < part_of.parts.size(); ++p, ++parts) {
      if (parts >= values.size()) continue;
      const TensorType& wanted = task.graph->type(values[parts]);
      if (part_of.parts[p] != wanted)
        here.fail(
            concat(roles.slot, " %", part_of.name, " does not fit task @", task.name),
            {concat("its part ", p, " is ", part_of.parts[p].text(), "; ", roles.value, " ", parts, " of the task is ", wanted.text())});
    }
  }
  if (parts != values.size())
    here.fail(concat("the ", roles.slot, "s do not fit task @", task.name),
              {concat("they have ", parts, " parts; the task has ", values.size(), " ", roles.value, "s")});
}

void check_run(const Here& here) {
  const Task& task = here.program.tasks[here.i.task.index()];
  check_parts(here, task, {"operand", "input"}, task.graph->inputs, here.device.operands_of(here.i));
  check_parts(here, task, {"result", "output"}, task.graph->outputs, here.device.results_of(here.i) | std::views::transform(&Result::slot));
}

void check_same_parts(const Here& here, SlotId from, SlotId to) {
  if (here.slot(from).parts != here.slot(to).parts)
    here.fail(concat("slots %", here.slot(from).name, " and %", here.slot(to).name, " differ in type"));
  if (slot_bytes(here.slot(from)) != slot_bytes(here.slot(to)))
    here.fail(concat("slots %", here.slot(from).name, " and %", here.slot(to).name, " differ in room"),
              {concat(slot_bytes(here.slot(from)), " and ", slot_bytes(here.slot(to)), " bytes")});
}

void check_copy(const Here& here, Lifetimes& slots) {
  const SlotId from = here.device.operands_of(here.i)[0];
  const Result& to = here.device.results_of(here.i)[0];
  if (to.mode == ResultMode::add) here.fail("a copy cannot add");
  slots.read_and_write(here);
  if (from == to.slot) here.fail("a slot is copied to itself");
  check_same_parts(here, from, to.slot);
}

void check_host_copy(const Here& here, Lifetimes& slots) {
  const SlotId from = here.device.operands_of(here.i)[0];
  const auto [to, mode] = here.device.results_of(here.i)[0];
  const bool out = here.i.opcode == Opcode::offload;
  if (is_on_host(here.slot(from).kind) == out || is_on_host(here.slot(to).kind) != out)
    here.fail(concat("slot %", here.slot(is_on_host(here.slot(from).kind) == out ? from : to).name, " is of the wrong class"),
              {out ? "an offload goes from the device's memory to a host or snapshot slot"
                   : "a reload goes from a host or snapshot slot to the device's memory"});
  if (mode == ResultMode::add) here.fail("a copy cannot add");
  slots.reach_sum(here, from);
  mode == ResultMode::store ? slots.fill(here, to) : slots.reach_sum(here, to);
  check_same_parts(here, from, to);
}

void check_summed(const Here& here, SlotId from, SlotId to) {
  if (here.slot(from).parts.empty()) return;
  const DType dtype = here.slot(from).parts[0].dtype;
  if (!can_be_summed(dtype))
    here.fail(concat("slot %", here.slot(from).name, " is of ", name(dtype), ", which cannot be summed"), {},
              "f32, f64, bf16, i32 and i64 can");
  for (const SlotId id : {from, to})
    for (const TensorType& part : here.slot(id).parts)
      if (part.dtype != dtype)
        here.fail(concat("slot %", here.slot(id).name, " has a part of ", name(part.dtype)),
                  {concat("what is summed is of ", name(dtype))});
}

void check_collective(const Here& here, Lifetimes& slots) {
  const auto operands = here.device.operands_of(here.i);
  const auto results = here.device.results_of(here.i);
  if (!results.empty() && results[0].mode == ResultMode::add) here.fail("a collective cannot add to what is there");
  const bool in_place = !operands.empty() && !results.empty() && operands[0] == results[0].slot;
  if (in_place && here.i.opcode != Opcode::all_reduce)
    here.fail(concat("slot %", here.slot(operands[0]).name, " cannot be written over what is read"));
  slots.read_and_write(here);
  if (operands.empty() || results.empty()) return;
  const SlotId from = operands[0], to = results[0].slot;
  const auto members = static_cast<std::int64_t>(here.program.groups[static_cast<std::size_t>(here.i.group)].size());
  const std::int64_t taken = slot_bytes(here.slot(from)) * (here.i.opcode == Opcode::all_gather ? members : 1);
  const std::int64_t given = slot_bytes(here.slot(to)) * (here.i.opcode == Opcode::reduce_scatter ? members : 1);
  if (taken != given)
    here.fail(concat("slots %", here.slot(from).name, " and %", here.slot(to).name, " do not fit ", members, " members"),
              {concat(slot_bytes(here.slot(from)), " and ", slot_bytes(here.slot(to)), " bytes")});
  if (here.i.opcode == Opcode::all_reduce) check_same_parts(here, from, to);
  if (here.i.opcode == Opcode::all_to_all && taken % (members * kAlignment) != 0)
    here.fail(concat("slot %", here.slot(from).name, " cannot be cut into ", members, " equal pieces"),
              {concat("it has ", taken, " bytes; pieces are multiples of ", kAlignment)});
  if (reduces(here.i.opcode)) check_summed(here, from, to);
}

void check_port(const Here& here, const TensorType& type) {
  const Slot& slot = here.slot(here.i.slot);
  if (slot.parts.size() != 1) here.fail(concat("slot %", slot.name, " has ", slot.parts.size(), " parts; a port has one"));
  if (slot.parts[0] != type) here.fail(concat("slot %", slot.name, " is ", slot.parts[0].text(), "; the port has ", type.text()));
}

void check_input(const Here& here, Lifetimes& slots) {
  slots.define(here, here.i.slot);
  const Port& port = here.program.data[static_cast<std::size_t>(here.i.port)];
  if (here.i.microbatch < 0) return check_port(here, port.type);
  if (!port.split) here.fail(concat("data ", port.name, " is not split into micro-batches"));
  if (here.i.microbatch >= here.program.microbatches)
    here.fail(concat("there is no micro-batch ", here.i.microbatch), {concat("the program has ", here.program.microbatches)});
  TensorType type = port.type;
  if (type.shape.empty() || type.shape[0] % here.program.microbatches != 0)
    here.fail(concat("data ", port.name, " cannot be split into ", here.program.microbatches, " micro-batches"),
              {concat("it is ", type.text())});
  type.shape[0] /= here.program.microbatches;
  check_port(here, type);
}

void check(const Here& here, Lifetimes& slots) {
  switch (here.i.opcode) {
    case Opcode::run:
      slots.read_and_write(here);
      return check_run(here);
    case Opcode::copy:
      return check_copy(here, slots);
    case Opcode::send:
      return slots.read(here, here.i.slot);
    case Opcode::recv:
      if (const SlotClass kind = here.slot(here.i.slot).kind; kind != SlotClass::copy && kind != SlotClass::snapshot)
        slots.define(here, here.i.slot);
      return;
    case Opcode::free:
      return slots.free(here, here.i.slot);
    case Opcode::input:
      return check_input(here, slots);
    case Opcode::output:
      slots.read(here, here.i.slot);
      return check_port(here, here.program.outputs[static_cast<std::size_t>(here.i.port)].type);
    case Opcode::offload:
    case Opcode::reload:
      return check_host_copy(here, slots);
    case Opcode::all_reduce:
    case Opcode::all_gather:
    case Opcode::reduce_scatter:
    case Opcode::broadcast:
    case Opcode::all_to_all:
      return check_collective(here, slots);
  }
}

}  // namespace

void check_definitions(const Program& program, int device) {
  const DeviceProgram& of = program.devices[static_cast<std::size_t>(device)];
  Lifetimes slots(of);
  for (std::size_t at = 0; at < of.instructions.size(); ++at) check({program, device, of, at}, slots);
  slots.check_end(of, device);
}

}  // namespace penstock::checks
