// Checks that each copy of a state holds what its owner holds when the step is over.
//
// The step is executed with symbols instead of bytes. A symbol is a hash of how a value came to be. Equal symbols mean equal values; a
// value that is computed in two ways has two symbols, and then a copy is refused although it might be right.
//
//   a state as the step begins    its name: at this point all copies equal their owners
//   an input                      port and micro-batch
//   a result of a run             in the loop its task, and outside of the loop its op, with the symbols that these read: tasks outside may
//                                 differ between devices and yet compute the same for a state (the step's number)
//   a sum (add)                   the symbol that was there, and the symbol added
//   a collective's result         the collective, and the device where each gets another piece
//
// Transfers, copies, host copies and broadcasts hand symbols on. A device's instructions take effect in program order, which the
// interpreter's waits ensure; a device that needs what is not yet sent lets others go on. As the program has been shown to finish, this
// execution finishes too.
#include <algorithm>
#include <map>
#include <optional>
#include <span>

#include "base/hash.h"
#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/state_parts.h"

namespace penstock::checks {
namespace {

using Symbol = std::uint64_t;

template <class... Words>
Symbol mix(Words... words) {
  Hash hash;
  (hash.add(words), ...);
  return hash.value();
}

// Keeps symbols of different kinds from being equal.
enum Origin : std::uint64_t { of_input, of_task, of_op, of_sum, of_part, of_collective };

// The part of a result's symbol that the op gives, whatever it reads.
Symbol symbol_of(const Op& op) {
  Hash hash;
  hash.add(op.name);
  for (const auto& [name, value] : op.attributes) {
    hash.add(name);
    hash.add(text_of(value));
  }
  if (op.body) hash.add(structural_hash(*op.body));
  return hash.value();
}

class Execution {
 public:
  Execution(const Program& program, const Transfers& transfers)
      : program_(program), transfers_(transfers), given_(transfers.all.size() + transfers.collectives.size()), ops_(program.tasks.size()) {
    for (const DeviceProgram& device : program.devices) {
      devices_.push_back({std::vector<Content>(device.slots.size())});
      for (std::size_t s = 0; s < device.slots.size(); ++s) {
        Hash names;
        for (const std::string& name : device.slots[s].names) names.add(name);
        devices_.back().contents[s].symbol = names.value();
      }
    }
  }

  void run() {
    for (std::size_t d = devices_.size(); d-- > 0;) woken_.push_back(d);
    while (!woken_.empty()) {
      at_ = woken_.back();
      woken_.pop_back();
      const std::vector<Instruction>& instructions = program_.devices[at_].instructions;
      std::size_t& next = devices_[at_].next;
      while (next < instructions.size() && execute(instructions[next])) ++next;
    }
    for (std::size_t d = 0; d < devices_.size(); ++d)
      invariant(devices_[d].next == program_.devices[d].instructions.size(), "a program that finishes does so with symbols");
  }

  bool is_written(const StatePart& part) const { return devices_[part.device].contents[part.slot].written; }

  bool are_equal(const StatePart& a, const StatePart& b) const {
    const Slot &of_a = slot(a.device, a.slot), &of_b = slot(b.device, b.slot);
    if (of_a.names == of_b.names) return content(a.device, a.slot) == content(b.device, b.slot);
    return symbol_of_part(a.device, a.slot, a.index) == symbol_of_part(b.device, b.slot, b.index);
  }

 private:
  struct Content {
    Symbol symbol = 0;
    std::int32_t arrives = -1;  // the transfer or broadcast that brings the symbol; -1: `symbol` holds it
    bool written = false;
  };
  struct Device {
    IdVector<SlotId, Content> contents{};  // by slot
    std::size_t next = 0;                  // the next instruction
    std::int32_t waits_for = -1;           // a transfer or broadcast
  };

  const DeviceProgram& own() const { return program_.devices[at_]; }
  const Slot& slot(std::size_t device, std::size_t number) const { return program_.devices[device].slots[number]; }
  Symbol content(std::size_t device, std::size_t number) const {
    const Content& c = devices_[device].contents[number];
    return c.arrives < 0 ? c.symbol : given_[c.arrives].value();
  }
  Symbol symbol_of_part(std::size_t device, std::size_t number, std::size_t part) const {
    const Slot& of = slot(device, number);
    if (!of.names.empty() && !devices_[device].contents[number].written) return mix(of.names[part]);
    return of.parts.size() == 1 ? content(device, number) : mix(of_part, content(device, number), part);
  }

  // Whether the symbol in the slot is known already; if not, the device must wait.
  bool has(SlotId id) {
    Device& device = devices_[at_];
    const std::int32_t from = device.contents[id].arrives;
    const bool known = from < 0 || given_[from].has_value();
    if (!known) device.waits_for = from;
    return known;
  }
  void write(SlotId id, Symbol symbol) { devices_[at_].contents[id] = {symbol, -1, true}; }
  void give(std::int32_t number, Symbol symbol, std::span<const std::int32_t> to) {
    given_[number] = symbol;
    for (const std::int32_t d : to) {
      Device& device = devices_[d];
      if (device.waits_for != number) continue;
      device.waits_for = -1;
      woken_.push_back(static_cast<std::size_t>(d));
    }
  }

  // Returns false where the device must wait.
  bool execute(const Instruction& i) {
    const std::int32_t number = transfers_.of[at_][&i - own().instructions.data()];
    switch (i.opcode) {
      case Opcode::run:
        return execute_run(i);
      case Opcode::copy:
      case Opcode::offload:
      case Opcode::reload: {
        const SlotId from = own().operands_of(i)[0];
        if (!has(from)) return false;
        write(own().results_of(i)[0].slot, content(at_, from.index()));
        return true;
      }
      case Opcode::send:
        if (!has(i.slot)) return false;
        give(number, content(at_, i.slot.index()), {&i.peer, 1});
        return true;
      case Opcode::recv:
        devices_[at_].contents[i.slot] = {0, number, true};
        return true;
      case Opcode::input:
        write(i.slot, mix(of_input, static_cast<std::uint64_t>(i.port), static_cast<std::uint64_t>(i.microbatch)));
        return true;
      case Opcode::output:
      case Opcode::free:
        return true;
      case Opcode::broadcast:
        for (const SlotId from : own().operands_of(i)) {
          if (!has(from)) return false;
          give(number, content(at_, from.index()), program_.groups[i.group]);
        }
        for (const Result& to : own().results_of(i)) devices_[at_].contents[to.slot] = {0, number, true};
        return true;
      case Opcode::all_reduce:
      case Opcode::all_gather:
      case Opcode::reduce_scatter:
      case Opcode::all_to_all: {
        const bool alike = i.opcode == Opcode::all_reduce || i.opcode == Opcode::all_gather;
        write(own().results_of(i)[0].slot, mix(of_collective, static_cast<std::uint64_t>(number), alike ? 0 : at_ + 1));
        return true;
      }
    }
    return true;
  }

  bool execute_run(const Instruction& i) {
    for (const SlotId operand : own().operands_of(i))
      if (!has(operand)) return false;
    for (const Result& result : own().results_of(i))
      if (result.mode == ResultMode::add && !has(result.slot)) return false;
    i.microbatch < 0 ? execute_ops(i) : execute_task(i);
    return true;
  }

  void write(const Result& result, Symbol symbol) {
    const bool adds = result.mode == ResultMode::add;
    write(result.slot, adds ? mix(of_sum, content(at_, result.slot.index()), symbol) : symbol);
  }

  void execute_task(const Instruction& i) {
    Hash hash;
    hash.add(of_task);
    hash.add(static_cast<std::uint64_t>(i.task.value));
    for (const SlotId operand : own().operands_of(i)) hash.add(content(at_, operand.index()));
    std::uint64_t number = 0;
    for (const Result& result : own().results_of(i)) write(result, mix(hash.value(), number++));
  }

  void execute_ops(const Instruction& i) {
    const Graph& graph = program_.tasks[i.task].graph;
    IdVector<ValueId, Symbol> symbols(graph.values.size());
    std::size_t input = 0;
    for (const SlotId operand : own().operands_of(i))
      for (std::size_t p = 0; p < slot(at_, operand.index()).parts.size(); ++p)
        symbols[graph.inputs[input++]] = symbol_of_part(at_, operand.index(), p);
    std::vector<Symbol>& ops = ops_[i.task];
    if (ops.empty()) std::ranges::transform(graph.ops, std::back_inserter(ops), [](const Op& op) { return symbol_of(op); });
    for (std::size_t o = 0; o < graph.ops.size(); ++o) {
      Hash hash;
      hash.add(of_op);
      hash.add(ops[o]);
      for (const ValueId operand : graph.ops[o].operands) hash.add(symbols[operand]);
      std::uint64_t number = 0;
      for (const ValueId result : graph.ops[o].results) symbols[result] = mix(hash.value(), number++);
    }
    std::size_t output = 0;
    for (const Result& result : own().results_of(i)) {
      const std::size_t parts = slot(at_, result.slot.index()).parts.size();
      Hash hash;
      for (std::size_t p = 0; p < parts; ++p) hash.add(symbols[graph.outputs[output + p]]);
      write(result, parts == 1 ? symbols[graph.outputs[output]] : hash.value());
      output += parts;
    }
  }

  const Program& program_;
  const Transfers& transfers_;
  std::vector<Device> devices_;
  std::vector<std::optional<Symbol>> given_;   // by transfer or collective, as Transfers::of numbers them
  IdVector<TaskId, std::vector<Symbol>> ops_;  // the ops' symbols of each task, filled when they are needed
  std::vector<std::size_t> woken_;             // devices that can go on
  std::size_t at_ = 0;                         // the device that is running
};

// The last instruction that writes the slot, as text for a message.
std::string last_write(const Program& program, const StatePart& part) {
  const DeviceProgram& device = program.devices[part.device];
  for (std::size_t at = device.instructions.size(); at-- > 0;) {
    const Instruction& i = device.instructions[at];
    const bool writes = has_operands(i.opcode)
                            ? std::ranges::any_of(device.results_of(i), [&](const Result& r) { return r.slot.index() == part.slot; })
                            : i.opcode == Opcode::recv && i.slot.index() == part.slot;
    if (writes) return concat("is written last at ", place(program, static_cast<int>(part.device), at));
  }
  return "is never written";
}

[[noreturn]] void fail(const Program& program, const StatePart& copy, const StatePart& owner, std::string_view hint) {
  throw Error(concat(place(program, copy), " does not end the step with what the owner of state ", quote(*copy.name), " has"),
              {concat("the copy ", last_write(program, copy)), concat(place(program, owner), ", its owner, ", last_write(program, owner))},
              std::string(hint));
}

void check_copy(const Program& program, const Execution& execution, const StatePart& copy, const std::vector<StatePart>& owners) {
  const auto same = std::ranges::find_if(owners, [&](const StatePart& owner) { return *owner.name == *copy.name; });
  if (same != owners.end()) {
    if (!execution.are_equal(copy, *same)) fail(program, copy, *same, "send it there after its owner's last update, or update it alike");
    return;
  }
  for (const StatePart& owner : owners)
    if (owner.piece.begin < copy.end() && copy.piece.begin < owner.end() && (execution.is_written(owner) || execution.is_written(copy)))
      fail(program, copy, owner, "what is updated is copied in its owners' form: a piece of it by its name");
}

}  // namespace

void check_copies(const Program& program, const Transfers& transfers) {
  const StateParts all_copies = state_parts(program, SlotClass::copy);
  if (all_copies.empty()) return;
  Execution execution(program, transfers);
  execution.run();
  const StateParts owners = state_parts(program, SlotClass::state);
  for (const auto& [tensor, copies] : all_copies)
    for (const StatePart& copy : copies) check_copy(program, execution, copy, owners.at(tensor));
}

}  // namespace penstock::checks
