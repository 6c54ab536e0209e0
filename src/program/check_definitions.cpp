// Checks definitions, uses and types on one device, in program order.
#include <span>

#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "program/checks.h"

namespace penstock::checks {
namespace {

class Checker {
 public:
  Checker(const Program& program, int number)
      : program_(program), number_(number), device_(program.devices[static_cast<std::size_t>(number)]), slots_(device_.slots.size()) {
    for (std::size_t s = 0; s < slots_.size(); ++s)
      if (holds_state(device_.slots[s].kind)) slots_[s].state = State::defined;
  }

  void run() {
    for (at_ = 0; at_ < device_.instructions.size(); ++at_) check(device_.instructions[at_]);
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      const Slot& slot = device_.slots[s];
      if (slots_[s].state == State::undefined) throw Error(concat("device ", number_, ": slot %", slot.name, " is never defined"));
      if (slots_[s].state == State::defined && !holds_state(slot.kind))
        throw Error(concat("device ", number_, ": slot %", slot.name, " is never freed"),
                    {concat("defined at instruction ", slots_[s].defined)});
    }
  }

 private:
  enum class State : std::uint8_t { undefined, defined, freed };
  struct SlotState {
    State state = State::undefined;
    std::size_t defined = 0, freed = 0;          // numbers of instructions
    std::int64_t read_by = -1, written_by = -1;  // the last run or copy that reads it, and that writes it
  };

  const Slot& slot(SlotId id) const { return device_.slots[id.index()]; }

  [[noreturn]] void fail(const std::string& what, const std::vector<std::string>& details = {}, const std::string& hint = {}) const {
    throw Error(concat(place(program_, number_, at_), ": ", what), details, hint);
  }

  // Checks a use by anything but a host copy.
  void use(SlotId id) const {
    on_device(id);
    reach(id);
  }
  void on_device(SlotId id) const {
    if (slot(id).kind == SlotClass::host) fail(concat("slot %", slot(id).name, " lies in the host's memory"), {}, "reload it");
  }
  void reach(SlotId id) const {
    const SlotState& state = slots_[id.index()];
    if (state.state == State::undefined) fail(concat("slot %", slot(id).name, " is used before it is defined"));
    if (state.state == State::freed)
      fail(concat("slot %", slot(id).name, " is used after it was freed"), {concat("freed at instruction ", state.freed)});
  }

  void define(SlotId id) {
    on_device(id);
    fill(id);
  }
  void fill(SlotId id) {
    SlotState& state = slots_[id.index()];
    if (holds_state(slot(id).kind))
      fail(concat("slot %", slot(id).name, " holds a state, which is defined from the start"), {}, "update it");
    if (state.state != State::undefined)
      fail(concat("slot %", slot(id).name, " is defined twice"), {concat("before at instruction ", state.defined)});
    state.state = State::defined;
    state.defined = at_;
  }

  void check(const Instruction& i) {
    switch (i.opcode) {
      case Opcode::run:
        check_run(i);
        break;
      case Opcode::copy:
        check_copy(i);
        break;
      case Opcode::send:
        use(i.slot);
        break;
      case Opcode::recv:
        if (slot(i.slot).kind != SlotClass::copy) define(i.slot);
        break;
      case Opcode::free:
        reach(i.slot);
        if (holds_state(slot(i.slot).kind)) fail(concat("slot %", slot(i.slot).name, " holds a state, which is never freed"));
        slots_[i.slot.index()].state = State::freed;
        slots_[i.slot.index()].freed = at_;
        break;
      case Opcode::input:
        check_input(i);
        break;
      case Opcode::output:
        use(i.slot);
        check_port(i, program_.outputs[static_cast<std::size_t>(i.port)].type);
        break;
      case Opcode::offload:
      case Opcode::reload:
        check_host_copy(i);
        break;
      case Opcode::all_reduce:
      case Opcode::all_gather:
      case Opcode::reduce_scatter:
      case Opcode::broadcast:
      case Opcode::all_to_all:
        check_collective(i);
        break;
    }
  }

  void check_operands(const Instruction& i) {
    for (SlotId operand : device_.operands_of(i)) {
      use(operand);
      slots_[operand.index()].read_by = static_cast<std::int64_t>(at_);
    }
  }

  void check_results(const Instruction& i) {
    for (const Result& result : device_.results_of(i)) {
      SlotState& state = slots_[result.slot.index()];
      if (result.mode == ResultMode::store) {
        define(result.slot);
      } else {
        use(result.slot);
        if (state.written_by == static_cast<std::int64_t>(at_))
          fail(concat("slot %", slot(result.slot).name, " is written twice by one instruction"));
        if (result.mode == ResultMode::add && state.read_by == static_cast<std::int64_t>(at_))
          fail(concat("slot %", slot(result.slot).name, " is both read and added to"), {}, "update it");
      }
      state.written_by = static_cast<std::int64_t>(at_);
    }
  }

  void check_run(const Instruction& i) {
    check_operands(i);
    check_results(i);
    const Task& task = program_.tasks[i.task.index()];
    check_parts(task, "operand", "input", task.graph.inputs, device_.operands_of(i), [](SlotId id) { return id; });
    check_parts(task, "result", "output", task.graph.outputs, device_.results_of(i), [](const Result& result) { return result.slot; });
  }

  // Checks that the parts of the slots, in order, are the graph's values.
  template <class Item, class SlotOf>
  void check_parts(const Task& task, std::string_view role, std::string_view role_in_task, std::span<const ValueId> values,
                   std::span<const Item> items, SlotOf&& slot_of) const {
    std::size_t next = 0;
    for (const Item& item : items) {
      const Slot& part_of = slot(slot_of(item));
      for (std::size_t p = 0; p < part_of.parts.size(); ++p, ++next) {
        if (next >= values.size()) break;
        const TensorType& wanted = task.graph.type(values[next]);
        if (part_of.parts[p] != wanted)
          fail(concat(role, " %", part_of.name, " does not fit task @", task.name),
               {concat("its part ", p, " is ", part_of.parts[p].text(), "; ", role_in_task, " ", next, " of the task is ", wanted.text())});
      }
    }
    std::size_t parts = 0;
    for (const Item& item : items) parts += slot(slot_of(item)).parts.size();
    if (parts != values.size())
      fail(concat("the ", role, "s do not fit task @", task.name),
           {concat("they have ", parts, " parts; the task has ", values.size(), " ", role_in_task, "s")});
  }

  void check_copy(const Instruction& i) {
    const SlotId from = device_.operands_of(i)[0];
    const Result& to = device_.results_of(i)[0];
    if (to.mode == ResultMode::add) fail("a copy cannot add");
    check_operands(i);
    check_results(i);
    if (from == to.slot) fail("a slot is copied to itself");
    check_same_parts(from, to.slot);
  }

  void check_same_parts(SlotId from, SlotId to) const {
    if (slot(from).parts != slot(to).parts) fail(concat("slots %", slot(from).name, " and %", slot(to).name, " differ in type"));
    if (slot_bytes(slot(from)) != slot_bytes(slot(to)))
      fail(concat("slots %", slot(from).name, " and %", slot(to).name, " differ in room"),
           {concat(slot_bytes(slot(from)), " and ", slot_bytes(slot(to)), " bytes")});
  }

  void check_host_copy(const Instruction& i) {
    const SlotId from = device_.operands_of(i)[0], to = device_.results_of(i)[0].slot;
    const bool out = i.opcode == Opcode::offload;
    const SlotClass source = out ? SlotClass::step : SlotClass::host, target = out ? SlotClass::host : SlotClass::step;
    if (slot(from).kind != source || slot(to).kind != target)
      fail(concat("slot %", slot(from).kind != source ? slot(from).name : slot(to).name, " is of the wrong class"),
           {out ? "an offload goes from a step slot to a host slot" : "a reload goes from a host slot to a step slot"});
    reach(from);
    fill(to);
    check_same_parts(from, to);
  }

  void check_collective(const Instruction& i) {
    const auto operands = device_.operands_of(i);
    const auto results = device_.results_of(i);
    if (!results.empty() && results[0].mode == ResultMode::add) fail("a collective cannot add to what is there");
    const bool in_place = !operands.empty() && !results.empty() && operands[0] == results[0].slot;
    if (in_place && i.opcode != Opcode::all_reduce) fail(concat("slot %", slot(operands[0]).name, " cannot be written over what is read"));
    check_operands(i);
    check_results(i);
    if (operands.empty() || results.empty()) return;
    const SlotId from = operands[0], to = results[0].slot;
    const auto members = static_cast<std::int64_t>(program_.groups[static_cast<std::size_t>(i.group)].size());
    const std::int64_t taken = slot_bytes(slot(from)) * (i.opcode == Opcode::all_gather ? members : 1);
    const std::int64_t given = slot_bytes(slot(to)) * (i.opcode == Opcode::reduce_scatter ? members : 1);
    if (taken != given)
      fail(concat("slots %", slot(from).name, " and %", slot(to).name, " do not fit ", members, " members"),
           {concat(slot_bytes(slot(from)), " and ", slot_bytes(slot(to)), " bytes")});
    if (i.opcode == Opcode::all_reduce) check_same_parts(from, to);
    if (i.opcode == Opcode::all_to_all && taken % (members * kAlignment) != 0)
      fail(concat("slot %", slot(from).name, " cannot be cut into ", members, " equal pieces"),
           {concat("it has ", taken, " bytes; pieces are multiples of ", kAlignment)});
    if (reduces(i.opcode)) check_summed(from, to);
  }

  void check_summed(SlotId from, SlotId to) const {
    if (slot(from).parts.empty()) return;
    const DType dtype = slot(from).parts[0].dtype;
    if (!can_be_summed(dtype))
      fail(concat("slot %", slot(from).name, " is of ", name(dtype), ", which cannot be summed"), {}, "f32, f64, i32 and i64 can");
    for (const SlotId id : {from, to})
      for (const TensorType& part : slot(id).parts)
        if (part.dtype != dtype)
          fail(concat("slot %", slot(id).name, " has a part of ", name(part.dtype)), {concat("what is summed is of ", name(dtype))});
  }

  void check_input(const Instruction& i) {
    define(i.slot);
    const Port& port = program_.data[static_cast<std::size_t>(i.port)];
    if (i.microbatch < 0) return check_port(i, port.type);
    if (!port.split) fail(concat("data ", port.name, " is not split into micro-batches"));
    if (i.microbatch >= program_.microbatches)
      fail(concat("there is no micro-batch ", i.microbatch), {concat("the program has ", program_.microbatches)});
    TensorType type = port.type;
    if (type.shape.empty() || type.shape[0] % program_.microbatches != 0)
      fail(concat("data ", port.name, " cannot be split into ", program_.microbatches, " micro-batches"), {concat("it is ", type.text())});
    type.shape[0] /= program_.microbatches;
    check_port(i, type);
  }

  void check_port(const Instruction& i, const TensorType& type) const {
    const Slot& here = slot(i.slot);
    if (here.parts.size() != 1) fail(concat("slot %", here.name, " has ", here.parts.size(), " parts; a port has one"));
    if (here.parts[0] != type) fail(concat("slot %", here.name, " is ", here.parts[0].text(), "; the port has ", type.text()));
  }

  const Program& program_;
  const int number_;
  const DeviceProgram& device_;
  std::vector<SlotState> slots_;
  std::size_t at_ = 0;
};

}  // namespace

void check_definitions(const Program& program, int device) {
  Checker(program, device).run();
}

}  // namespace penstock::checks
