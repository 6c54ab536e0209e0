// SPDX-License-Identifier: Apache-2.0
// Checks sends and receives: each has its other end, in order and of one type; and no order of devices can stall them or the collectives.
#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <utility>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/interpreter.h"

namespace penstock::checks {
namespace {

// The sends and receives from one device to another, in the order of each end.
struct Ends {
  std::vector<std::int32_t> sends, recvs;  // numbers of instructions: the sender's, and the receiver's
};
using Pairs = std::map<std::pair<std::int32_t, std::int32_t>, Ends>;  // by (from, to)

// The ends of one device's transfers by peer, so that no instruction has to search the map.
class OwnEnds {
 public:
  explicit OwnEnds(std::size_t devices) : to_(devices), from_(devices) {}

  std::vector<std::int32_t>& of(Pairs& pairs, std::int32_t device, const Instruction& instruction) {
    const bool sends = instruction.opcode == Opcode::send;
    Ends*& ends = (sends ? to_ : from_)[instruction.peer];
    if (ends == nullptr) {
      ends = sends ? &pairs[{device, instruction.peer}] : &pairs[{instruction.peer, device}];
      peers_.push_back(instruction.peer);
    }
    return sends ? ends->sends : ends->recvs;
  }
  void clear() {
    for (std::int32_t peer : peers_) to_[peer] = from_[peer] = nullptr;
    peers_.clear();
  }

 private:
  std::vector<Ends*> to_, from_;
  std::vector<std::int32_t> peers_;  // peers whose entries are set
};

Pairs pairs_of(const Program& program) {
  Pairs pairs;
  OwnEnds own(program.devices.size());
  const std::int32_t devices = static_cast<std::int32_t>(program.devices.size());
  for (std::int32_t d = 0; d < devices; ++d, own.clear()) {
    const std::vector<Instruction>& instructions = program.devices[d].instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      const Instruction& instruction = instructions[i];
      if (instruction.opcode != Opcode::send && instruction.opcode != Opcode::recv) continue;
      if (instruction.peer < 0 || instruction.peer >= devices || instruction.peer == d)
        throw Error(concat(place(program, d, i), ": there is no such peer"), {concat("the program has devices 0 to ", devices - 1)});
      std::vector<std::int32_t>& list = own.of(pairs, d, instruction);
      if (instruction.tag != std::ssize(list))
        throw Error(concat(place(program, d, i), ": transfers out of order"), {concat("the next tag here is ", list.size())},
                    "tags number the transfers of a pair in one direction from 0, in the order of both ends");
      list.push_back(static_cast<std::int32_t>(i));
    }
  }
  return pairs;
}

void check_types(const Program& program, const Transfer& transfer) {
  const auto slot_of = [&](std::int32_t device, std::int32_t instruction) -> const Slot& {
    const DeviceProgram& on = program.devices[device];
    return on.slots[on.instructions[instruction].slot];
  };
  const Slot& from = slot_of(transfer.from, transfer.sender);
  const Slot& to = slot_of(transfer.to, transfer.receiver);
  const bool same_type = from.parts == to.parts;
  if (same_type && slot_bytes(from) == slot_bytes(to)) return;
  const auto show = [&](const Slot& slot) {
    const std::string room = same_type ? concat(" in ", slot_bytes(slot), " bytes") : "";
    return concat("%", slot.name, " (", join(slot.parts, ", ", [](const TensorType& type) { return type.text(); }), ")", room);
  };
  throw Error(
      concat(place(program, transfer.from, transfer.sender), ": its ends differ in ", same_type ? "room" : "type"),
      {concat("sent: ", show(from)), concat("received at instruction ", transfer.receiver, " of device ", transfer.to, ": ", show(to))});
}

[[noreturn]] void missing_end(const Program& program, std::int32_t device, std::int32_t instruction, std::string_view other) {
  throw Error(concat(place(program, device, instruction), ": its ", other, " is missing"));
}

// Collects the members of the groups' collectives, by tag.
void match_collectives(const Program& program, Transfers& transfers) {
  std::vector<std::vector<Collective>> by_group(program.groups.size());
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    std::vector<std::int32_t> next(program.groups.size(), 0);
    for (std::size_t at = 0; at < program.devices[d].instructions.size(); ++at) {
      const Instruction& i = program.devices[d].instructions[at];
      if (!is_collective(i.opcode)) continue;
      const std::size_t g = i.group;
      const std::vector<std::int32_t>& members = program.groups[g];
      const std::optional<std::size_t> member = place_in_group(members, static_cast<std::int32_t>(d));
      if (!member)
        throw Error(concat(place(program, static_cast<int>(d), at), ": device ", d, " is no member of group ", g),
                    {concat("its members: ", join_devices(members))});
      if (i.tag != next[g]++)
        throw Error(concat(place(program, static_cast<int>(d), at), ": collectives out of order"),
                    {concat("the next tag here is ", next[g] - 1)},
                    "tags number the collectives of a group from 0, in the order of all its members");
      if (by_group[g].size() <= static_cast<std::size_t>(i.tag)) by_group[g].push_back({i.group, std::vector(members.size(), -1)});
      by_group[g][i.tag].instructions[*member] = static_cast<std::int32_t>(at);
    }
  }
  for (std::size_t g = 0; g < by_group.size(); ++g)
    for (Collective& collective : by_group[g]) {
      const std::vector<std::int32_t>& members = program.groups[g];
      const auto number = static_cast<std::int32_t>(transfers.all.size() + transfers.collectives.size());
      const auto absent = std::find(collective.instructions.begin(), collective.instructions.end(), -1);
      const auto present =
          std::find_if(collective.instructions.begin(), collective.instructions.end(), [](std::int32_t i) { return i >= 0; });
      if (absent != collective.instructions.end())
        throw Error(concat(place(program, members[present - collective.instructions.begin()], static_cast<std::size_t>(*present)),
                           ": device ", members[absent - collective.instructions.begin()],
                           " takes no part in it, though a member of group ", g));
      for (std::size_t m = 0; m < members.size(); ++m) transfers.of[members[m]][collective.instructions[m]] = number;
      transfers.collectives.push_back(std::move(collective));
    }
}

}  // namespace

Transfers match_transfers(const Program& program) {
  Transfers transfers;
  for (const DeviceProgram& device : program.devices) transfers.of.emplace_back(device.instructions.size(), -1);
  for (const auto& [pair, ends] : pairs_of(program)) {
    const auto [from, to] = pair;
    if (ends.sends.size() > ends.recvs.size()) missing_end(program, from, ends.sends[ends.recvs.size()], "recv");
    if (ends.recvs.size() > ends.sends.size()) missing_end(program, to, ends.recvs[ends.sends.size()], "send");
    for (std::size_t t = 0; t < ends.sends.size(); ++t) {
      const std::int32_t number = static_cast<std::int32_t>(transfers.all.size());
      transfers.all.push_back({from, to, ends.sends[t], ends.recvs[t]});
      transfers.of[from][ends.sends[t]] = number;
      transfers.of[to][ends.recvs[t]] = number;
    }
  }
  match_collectives(program, transfers);
  return transfers;
}

void check_transfer_types(const Program& program, const Transfers& transfers) {
  for (const Transfer& transfer : transfers.all) check_types(program, transfer);
}

void check_serial_order(const Program& program, const Transfers& transfers) {
  // For each pair of devices, its transfers in both directions: in the order of the lower device, and in that of the higher one.
  std::map<std::pair<std::int32_t, std::int32_t>, std::array<std::vector<std::int32_t>, 2>> orders;
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (std::int32_t transfer : transfers.of[d]) {
      if (transfer < 0 || transfer >= std::ssize(transfers.all)) continue;
      const auto [low, high] = std::minmax(transfers.all[transfer].from, transfers.all[transfer].to);
      orders[{low, high}][static_cast<std::int32_t>(d) == low ? 0 : 1].push_back(transfer);
    }
  const auto show = [&](std::int32_t device, std::int32_t number) {
    const Transfer& transfer = transfers.all[number];
    return place(program, device, transfer.from == device ? transfer.sender : transfer.receiver);
  };
  for (const auto& [pair, order] : orders) {
    const auto [low, high] = std::mismatch(order[0].begin(), order[0].end(), order[1].begin());
    if (low == order[0].end()) continue;
    throw Error(concat("devices ", pair.first, " and ", pair.second,
                       " start their transfers in different orders: one serial channel would never finish"),
                {concat("transfer ", low - order[0].begin(), " of the pair is, to device ", pair.first, ": ", show(pair.first, *low)),
                 concat("and to device ", pair.second, ": ", show(pair.second, *high))});
  }
}

namespace {

// A machine without any buffer: a transfer is done once both ends have started it. A collective is done once it is the first in the queues
// of all its members, as a device does the collectives that it has started one after the other.
struct RendezvousMachine {
  const Program& program;
  const Transfers& transfers;
  // Ends of each transfer that have not started; members of each collective in whose queue it is not yet the first.
  std::vector<std::int32_t> missing;
  std::vector<std::deque<std::int32_t>> queues;  // for each device, its collectives that are started and not done
  std::vector<Event> waits_for;                  // by device
  std::size_t device = 0;                        // the device that is running
  std::vector<std::int32_t> woken;

  RendezvousMachine(const Program& p, const Transfers& t)
      : program(p), transfers(t), missing(t.all.size(), 2), queues(p.devices.size()), waits_for(p.devices.size(), kNoEvent) {
    for (std::size_t c = 0; c < t.collectives.size(); ++c)
      missing.push_back(static_cast<std::int32_t>(members(static_cast<Event>(t.all.size() + c)).size()));
  }

  Event run(const Instruction&) { return kNoEvent; }
  Event start(const Instruction& instruction) {
    const std::int32_t transfer = transfers.of[device][&instruction - program.devices[device].instructions.data()];
    if (transfer < 0) return kNoEvent;  // input, output: the controller is always there; a host copy needs no other device
    if (is_collective(instruction.opcode)) {
      queues[device].push_back(transfer);
      if (queues[device].size() == 1) arrive(transfer);
    } else if (--missing[transfer] == 0) {
      wake(instruction.peer, transfer);
    }
    return transfer;
  }
  bool done(Event event) const { return missing[event] == 0; }
  void release(SlotId) {}

  // Notes that one more member has the collective first in its queue.
  void arrive(std::int32_t collective) {
    for (std::vector<std::int32_t> arrivals{collective}; !arrivals.empty();) {
      const std::int32_t number = arrivals.back();
      arrivals.pop_back();
      if (--missing[number] > 0) continue;
      for (const std::int32_t member : members(number)) {
        std::deque<std::int32_t>& queue = queues[member];
        queue.pop_front();
        wake(member, number);
        if (!queue.empty()) arrivals.push_back(queue.front());
      }
    }
  }
  void wake(std::int32_t other, std::int32_t transfer) {
    if (waits_for[other] != transfer) return;
    waits_for[other] = kNoEvent;
    woken.push_back(other);
  }
  const Collective& collective(Event number) const {
    return transfers.collectives[static_cast<std::size_t>(number) - transfers.all.size()];
  }
  const std::vector<std::int32_t>& members(Event number) const { return program.groups[collective(number).group]; }
};

// Why a device waits: its own instruction, and the instruction of another device that would have to come first.
struct Blocked {
  std::int32_t own, peer, others;  // own instruction; the other device; its instruction
  bool behind = false;             // whether the other instruction is of a collective that goes before
};

Blocked blocked_on(const RendezvousMachine& machine, const std::vector<DeviceState>& states, std::int32_t device, Event event) {
  const auto& all = machine.transfers.all;
  if (event < static_cast<Event>(all.size())) {
    const Transfer& transfer = all[event];
    if (transfer.from == device) return {transfer.sender, transfer.to, transfer.receiver};
    return {transfer.receiver, transfer.from, transfer.sender};
  }
  const auto of = [&](Event number, std::size_t m) { return machine.collective(number).instructions[m]; };
  const std::int32_t own = of(event, *place_in_group(machine.members(event), device));
  for (Event number = event, before = event;; number = before) {
    const std::vector<std::int32_t>& members = machine.members(number);
    for (std::size_t m = 0; m < members.size(); ++m) {
      const std::size_t member = members[m];
      if (states[member].next <= static_cast<std::size_t>(of(number, m))) return {own, members[m], of(number, m), number != event};
      if (machine.queues[member].front() != number) before = machine.queues[member].front();
    }
  }
}

// Devices of which each waits for the next, and the last for the first.
template <class Next>
std::vector<std::int32_t> find_cycle(const std::vector<Event>& waits_for, const Next& next) {
  std::int32_t device = 0;
  while (waits_for[device] == kNoEvent) ++device;
  // After as many edges as there are devices the walk is on the cycle.
  for (std::size_t i = 0; i < waits_for.size(); ++i) device = next(device).peer;
  std::vector<std::int32_t> cycle{device};
  while ((device = next(device).peer) != cycle.front()) cycle.push_back(device);
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
  return cycle;
}

[[noreturn]] void fail_deadlock(const RendezvousMachine& machine, const std::vector<DeviceState>& states) {
  const Program& program = machine.program;
  const auto blocked = [&](std::int32_t device) { return blocked_on(machine, states, device, machine.waits_for[device]); };
  const std::vector<std::int32_t> cycle = find_cycle(machine.waits_for, blocked);
  std::vector<std::string> lines;
  for (std::int32_t device : cycle) {
    const auto [own, peer, others, behind] = blocked(device);
    const std::size_t next = states[device].next;
    const std::string where =
        next < program.devices[device].instructions.size() ? place(program, device, next) : concat("device ", device, ", at its end");
    lines.push_back(concat(where, " waits for instruction ", own, " (", describe(program, device, static_cast<std::size_t>(own)), "), ",
                           behind ? "which comes after a collective whose" : "whose", " other end is instruction ", others, " of device ",
                           peer));
  }
  throw Error(concat("program @", program.name, " can never finish: devices ", join_devices(cycle), " wait for each other"), lines);
}

}  // namespace

void check_progress(const Program& program, const Transfers& transfers) {
  const std::size_t devices = program.devices.size();
  RendezvousMachine machine(program, transfers);
  std::vector<DeviceState> states;
  states.reserve(devices);
  for (std::size_t d = devices; d-- > 0;) machine.woken.push_back(static_cast<std::int32_t>(d));
  for (const DeviceProgram& device : program.devices) states.emplace_back(device);
  std::size_t finished = 0;
  while (!machine.woken.empty()) {
    machine.device = static_cast<std::size_t>(machine.woken.back());
    machine.woken.pop_back();
    const Wait wait = advance(states[machine.device], machine);
    machine.waits_for[machine.device] = wait.event;
    if (wait.finished()) ++finished;
  }
  if (finished < devices) fail_deadlock(machine, states);
}

}  // namespace penstock::checks
