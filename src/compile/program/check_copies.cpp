// SPDX-License-Identifier: Apache-2.0
// Checks that each copy of a state holds what its owner holds when the step is over, and each snapshot that is written what its state held
// when the step began, wherever it is kept.
//
// The step is executed with symbols instead of bytes, one for each part of a slot. Equal symbols mean equal values; a value that is
// computed in two ways has two symbols, and then a copy is refused although it might be right.
//
//   a state or snapshot as the    its name: at this point all copies equal their owners
//   step begins
//   an input                      port and micro-batch
//   a result of a run             its op, with the symbols that this reads: devices may run different tasks that do the same for a part
//   a sum (add)                   the symbol that was there, and the symbol added
//   a collective's result         the members' terms in the group's order, and the place and size, where these are summed; else the parts
//                                 that are moved (collective_symbols.h says what transports promise)
//
// Where a copy would be refused by these, the step is executed again with the symbols of moved_symbols.h, by which elements are compared
// one by one: so a program is proved that does nothing but move state, from one form to another or by other ways.
//
// Transfers, copies and host copies hand symbols on. A device's instructions take effect in program order, which the interpreter's waits
// ensure; a device that needs what is not yet sent, or not yet given by all members of a group, lets others go on. As the program has been
// shown to finish, this execution finishes too.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/collective_symbols.h"
#include "program/graph_facts.h"
#include "program/moved_symbols.h"
#include "program/snapshot_name.h"
#include "program/state_parts.h"
#include "program/symbol.h"

namespace penstock::checks {
namespace {

Symbol symbol_of_state(std::string_view name) {
  Hash hash;
  hash.add(mix(Origin::state));
  hash.add(name);
  return hash.value();
}

// The contents of a device's slots. Each has room for its parts' symbols in one list.
struct Contents {
  struct Content {
    std::size_t first = 0;      // in `symbols`
    std::int32_t arrives = -1;  // the delivery that brings the symbols; -1: they are there
    bool written = false;
  };
  IdVector<SlotId, Content> slots{};
  std::vector<Symbol> symbols{};
  std::size_t next = 0;         // the device's next instruction
  std::int32_t waits_for = -1;  // a delivery

  explicit Contents(const DeviceProgram& device) {
    for (const Slot& slot : device.slots) {
      slots.push_back({symbols.size()});
      for (const std::string& name : slot.names) symbols.push_back(symbol_of_state(name));
      symbols.resize(slots.back().first + slot.parts.size());
    }
  }
};

// A delivery is what one device gets of a transfer or collective. Transfers have one each, numbered as they are; those of collectives
// follow, one for each member.
class Execution {
 public:
  // `moved`: gives the states' symbols, of which `owners` are all; null: each part has its own.
  Execution(const Program& program, const Transfers& transfers, MovedSymbols* moved, const StateParts& owners)
      : program_(program), transfers_(transfers), moved_(moved) {
    for (const DeviceProgram& device : program.devices) devices_.emplace_back(device);
    if (moved)
      for (Contents& device : devices_) set_pieces(device, owners);
    std::size_t deliveries = transfers.all.size();
    for (const Collective& collective : transfers.collectives) {
      const std::size_t members = collective.instructions.size();
      meetings_.push_back({deliveries, members});
      deliveries += members;
    }
    delivered_.resize(deliveries);
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
    for (at_ = 0; at_ < devices_.size(); ++at_) {
      bool finished = devices_[at_].next == own().instructions.size();
      for (const SlotId slot : own().slots.ids()) finished = finished && has(slot);
      invariant(finished, "a program that finishes does so with symbols");
    }
  }

  bool is_written(const StatePart& part) const { return devices_[part.device].slots[part.slot].written; }
  Symbol symbol_of(const StatePart& part) const {
    const Contents& device = devices_[part.device];
    return device.symbols[device.slots[part.slot].first + part.index];
  }

 private:
  // A collective that its members come to.
  struct Meeting {
    std::size_t first = 0;    // of its deliveries
    std::size_t missing = 0;  // members that have not started it
    std::vector<SlotSymbols> given{}, taken{};
  };

  void set_pieces(Contents& contents, const StateParts& owners) {
    const DeviceProgram& device = program_.devices[static_cast<std::size_t>(&contents - devices_.data())];
    for (const SlotId slot : device.slots.ids())
      for (std::size_t p = 0; p < device.slots[slot].names.size(); ++p) {
        const Piece piece = parse_piece(device.slots[slot].names[p]);
        contents.symbols[contents.slots[slot].first + p] =
            moved_->of_piece(symbol_of_state(piece.tensor), whole_elements(owners.at(piece.tensor)), piece);
      }
  }

  const DeviceProgram& own() const { return program_.devices[at_]; }
  std::span<Symbol> symbols(SlotId id) {
    return {devices_[at_].symbols.data() + devices_[at_].slots[id].first, own().slots[id].parts.size()};
  }

  // Whether the slot's symbols are there; if not, the device must wait.
  bool has(SlotId id) {
    Contents::Content& content = devices_[at_].slots[id];
    if (content.arrives < 0) return true;
    std::optional<std::vector<Symbol>>& delivered = delivered_[static_cast<std::size_t>(content.arrives)];
    if (!delivered) {
      devices_[at_].waits_for = content.arrives;
      return false;
    }
    std::ranges::copy(*delivered, symbols(id).begin());
    delivered->clear();
    content.arrives = -1;
    return true;
  }
  bool has_all(std::span<const SlotId> slots) {
    return std::ranges::all_of(slots, [&](SlotId slot) { return has(slot); });
  }
  void set(SlotId id, std::int32_t arrives = -1) {
    devices_[at_].slots[id].arrives = arrives;
    devices_[at_].slots[id].written = true;
  }
  void deliver(std::size_t delivery, std::int32_t to, std::vector<Symbol> symbols) {
    delivered_[delivery] = std::move(symbols);
    Contents& device = devices_[static_cast<std::size_t>(to)];
    if (device.waits_for != static_cast<std::int32_t>(delivery)) return;
    device.waits_for = -1;
    woken_.push_back(static_cast<std::size_t>(to));
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
        const SlotId from = own().operands_of(i)[0], to = own().results_of(i)[0].slot;
        if (!has(from)) return false;
        std::ranges::copy(symbols(from), symbols(to).begin());
        set(to);
        return true;
      }
      case Opcode::send:
        if (!has(i.slot)) return false;
        deliver(number, i.peer, {symbols(i.slot).begin(), symbols(i.slot).end()});
        return true;
      case Opcode::recv:
        set(i.slot, number);
        return true;
      case Opcode::input:
        std::ranges::fill(symbols(i.slot), mix(Origin::input, i.port, i.microbatch));
        set(i.slot);
        return true;
      case Opcode::output:
      case Opcode::free:
        return true;
      default:
        return execute_collective(i, number - transfers_.all.size());
    }
  }

  bool execute_run(const Instruction& i) {
    const std::span<const SlotId> operands = own().operands_of(i);
    const std::span<const Result> results = own().results_of(i);
    if (!has_all(operands)) return false;
    for (const Result& result : results)
      if (result.mode == ResultMode::add && !has(result.slot)) return false;
    inputs_.clear();
    for (const SlotId operand : operands) inputs_.insert(inputs_.end(), symbols(operand).begin(), symbols(operand).end());
    const TaskGraph& task = program_.tasks[i.task].graph;
    if (moved_ && MovedSymbols::moves_only(task))
      moved_->run(task, inputs_, outputs_);
    else
      task.facts().symbols.get([&] { return TaskSymbols(*task); }).run(inputs_, values_, outputs_);
    std::size_t output = 0;
    for (const Result& result : results) {
      for (Symbol& symbol : symbols(result.slot)) {
        const Symbol given = outputs_[output++];
        symbol = result.mode == ResultMode::add ? mix(Origin::sum, symbol, given) : given;
      }
      set(result.slot);
    }
    return true;
  }

  bool execute_collective(const Instruction& i, std::size_t number) {
    const std::span<const SlotId> operands = own().operands_of(i);
    if (!has_all(operands)) return false;
    const std::vector<std::int32_t>& members = program_.groups[i.group];
    const std::size_t member = place_in_group(members, static_cast<std::int32_t>(at_)).value();
    Meeting& meeting = meetings_[number];
    meeting.given.resize(members.size());
    meeting.taken.resize(members.size());
    for (const SlotId from : operands) meeting.given[member] = {&own().slots[from], {symbols(from).begin(), symbols(from).end()}};
    for (const Result& to : own().results_of(i)) {
      meeting.taken[member].slot = &own().slots[to.slot];
      set(to.slot, static_cast<std::int32_t>(meeting.first + member));
    }
    if (--meeting.missing > 0) return true;
    const std::size_t root = i.opcode == Opcode::broadcast ? place_in_group(members, i.peer).value() : 0;
    share_symbols(i.opcode, number, root, meeting.given, meeting.taken);
    for (std::size_t m = 0; m < members.size(); ++m) deliver(meeting.first + m, members[m], std::move(meeting.taken[m].parts));
    meeting = {};
    return true;
  }

  const Program& program_;
  const Transfers& transfers_;
  MovedSymbols* const moved_;
  std::vector<Contents> devices_;
  std::vector<std::optional<std::vector<Symbol>>> delivered_;
  std::vector<Meeting> meetings_;                  // by collective
  std::vector<Symbol> inputs_, values_, outputs_;  // of the run that is executed
  std::vector<std::size_t> woken_;                 // devices that can go on
  std::size_t at_ = 0;                             // the device that is running
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

// A copy that does not hold what an owner has.
struct Stale {
  const StatePart *copy = nullptr, *owner = nullptr;
  bool same_form = false;  // the owner's piece is the copy's
};

[[noreturn]] void fail(const Program& program, const Stale& stale) {
  const auto& [copy, owner, same_form] = stale;
  throw Error(
      concat(place(program, *copy), " does not end the step with what the owner of state ", quote(*copy->name), " has"),
      {concat("the copy ", last_write(program, *copy)), concat(place(program, *owner), ", its owner, ", last_write(program, *owner))},
      same_form ? "send it there after its owner's last update, or update it alike"
                : "what is updated is copied in its owners' form: a piece of it by its name");
}

// Without `moved` nothing is known of what has another form and is written.
std::optional<Stale> find_stale(const Execution& execution, MovedSymbols* moved, const StatePart& copy,
                                const std::vector<StatePart>& owners) {
  const auto same = std::ranges::find_if(owners, [&](const StatePart& owner) { return *owner.name == *copy.name; });
  if (same != owners.end())
    return execution.symbol_of(copy) == execution.symbol_of(*same) ? std::nullopt : std::optional(Stale{&copy, &*same, true});
  const std::int64_t elements = whole_elements(owners);
  for (const StatePart& owner : owners) {
    if (!execution.is_written(owner) && !execution.is_written(copy)) continue;
    const bool agree = moved ? moved->agree(owner.piece, execution.symbol_of(owner), copy.piece, execution.symbol_of(copy), elements)
                             : !overlap(owner.piece, copy.piece, elements);
    if (!agree) return Stale{&copy, &owner};
  }
  return {};
}

std::optional<Stale> find_stale(const Execution& execution, MovedSymbols* moved, const StateParts& all_copies, const StateParts& owners) {
  for (const auto& [tensor, copies] : all_copies)
    for (const StatePart& copy : copies)
      if (const std::optional<Stale> stale = find_stale(execution, moved, copy, owners.at(tensor))) return stale;
  return {};
}

// A snapshot's part ends the step with what its state was, or with what parts of its name held before: as all others of its generation do.
void check_snapshots(const Program& program, const Execution& execution, const StateParts& snapshots) {
  std::array<const StatePart*, kGenerations> taken{}, left{};
  for (const auto& [tensor, parts] : snapshots)
    for (const StatePart& part : parts) {
      const auto [generation, state] = parse_snapshot_name(*part.name).value();
      const Symbol symbol = execution.symbol_of(part);
      if (symbol == symbol_of_state(state))
        taken[generation] = &part;
      else if (symbol == symbol_of_state(*part.name))
        left[generation] = &part;
      else
        throw Error(concat(place(program, part), " does not end the step with what state ", quote(state), " was when it began"),
                    {concat("the snapshot ", last_write(program, part))}, "copy the state to the host's memory ahead of its first update");
    }
  for (int g = 0; g < kGenerations; ++g)
    if (taken[g] && left[g])
      throw Error(concat(place(program, *left[g]), " does not get ", quote(*left[g]->name), ", though the step takes this snapshot"),
                  {concat("it ", last_write(program, *left[g])), concat(place(program, *taken[g]), " ", last_write(program, *taken[g]))},
                  "take all of a snapshot, or nothing");
}

}  // namespace

void check_copies(const Program& program, const Transfers& transfers) {
  const StateParts copies = state_parts(program, SlotClass::copy), snapshots = state_parts(program, SlotClass::snapshot);
  if (copies.empty() && snapshots.empty()) return;
  const StateParts owners = state_parts(program, SlotClass::state);
  Execution execution(program, transfers, nullptr, owners);
  execution.run();
  check_snapshots(program, execution, snapshots);
  if (!find_stale(execution, nullptr, copies, owners)) return;
  MovedSymbols moved;
  Execution by_elements(program, transfers, &moved, owners);
  by_elements.run();
  if (const std::optional<Stale> stale = find_stale(by_elements, &moved, copies, owners)) fail(program, *stale);
}

}  // namespace penstock::checks
