// Sends and receives: each has its other end, in order and of one type; and no order of devices can stall them.
#include <algorithm>
#include <unordered_map>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"
#include "program/interpreter.h"

namespace penstock::checks {
namespace {

std::uint64_t pair_key(std::int32_t from, std::int32_t to) {
  return static_cast<std::uint64_t>(from) << 32 | static_cast<std::uint32_t>(to);
}

// Instructions of each directed pair, in the order of one end.
using Ends = std::unordered_map<std::uint64_t, std::vector<std::int32_t>>;

Ends ends_of(const Program& program, Opcode opcode) {
  Ends ends;
  const std::int32_t devices = static_cast<std::int32_t>(program.devices.size());
  for (std::int32_t d = 0; d < devices; ++d) {
    const std::vector<Instruction>& instructions = program.devices[static_cast<std::size_t>(d)].instructions;
    for (std::size_t i = 0; i < instructions.size(); ++i) {
      if (instructions[i].opcode != opcode) continue;
      const std::int32_t peer = instructions[i].peer;
      if (peer < 0 || peer >= devices || peer == d)
        throw Error(concat(place(program, d, i), ": there is no such peer"), {concat("the program has devices 0 to ", devices - 1)});
      std::vector<std::int32_t>& list = opcode == Opcode::send ? ends[pair_key(d, peer)] : ends[pair_key(peer, d)];
      if (instructions[i].tag != static_cast<std::int32_t>(list.size()))
        throw Error(concat(place(program, d, i), ": transfers out of order"), {concat("the next tag here is ", list.size())},
                    "tags number the transfers of a pair in one direction from 0, in the order of both ends");
      list.push_back(static_cast<std::int32_t>(i));
    }
  }
  return ends;
}

void check_types(const Program& program, const Transfer& transfer) {
  const auto slot_of = [&](std::int32_t device, std::int32_t instruction) -> const Slot& {
    const DeviceProgram& on = program.devices[static_cast<std::size_t>(device)];
    return on.slots[on.instructions[static_cast<std::size_t>(instruction)].slot.index()];
  };
  const Slot& from = slot_of(transfer.from, transfer.sender);
  const Slot& to = slot_of(transfer.to, transfer.receiver);
  if (from.parts == to.parts) return;
  const auto show = [](const Slot& slot) {
    return concat("%", slot.name, " (", join(slot.parts, ", ", [](const TensorType& type) { return type.text(); }), ")");
  };
  throw Error(
      concat(place(program, transfer.from, static_cast<std::size_t>(transfer.sender)), ": its ends differ in type"),
      {concat("sent: ", show(from)), concat("received at instruction ", transfer.receiver, " of device ", transfer.to, ": ", show(to))});
}

void missing_end(const Program& program, std::int32_t device, std::int32_t instruction, std::string_view other) {
  throw Error(concat(place(program, device, static_cast<std::size_t>(instruction)), ": its ", other, " is missing"));
}

}  // namespace

Transfers match_transfers(const Program& program) {
  const Ends sends = ends_of(program, Opcode::send);
  const Ends recvs = ends_of(program, Opcode::recv);
  Transfers transfers;
  for (const DeviceProgram& device : program.devices) transfers.of.emplace_back(device.instructions.size(), -1);
  static const std::vector<std::int32_t> kNone;
  const auto find = [](const Ends& ends, std::uint64_t key) -> const std::vector<std::int32_t>& {
    const auto it = ends.find(key);
    return it == ends.end() ? kNone : it->second;
  };
  for (std::int32_t a = 0; a < static_cast<std::int32_t>(program.devices.size()); ++a)
    for (const Instruction& first : program.devices[static_cast<std::size_t>(a)].instructions) {
      // Each pair is taken at its first transfer, from the side that comes first.
      const bool sends_first = first.opcode == Opcode::send, recvs_first = first.opcode == Opcode::recv;
      if ((!sends_first && !recvs_first) || first.tag != 0) continue;
      const std::int32_t from = sends_first ? a : first.peer, to = sends_first ? first.peer : a;
      const std::vector<std::int32_t>& sent = find(sends, pair_key(from, to));
      const std::vector<std::int32_t>& received = find(recvs, pair_key(from, to));
      if (sent.size() > received.size()) missing_end(program, from, sent[received.size()], "recv");
      if (received.size() > sent.size()) missing_end(program, to, received[sent.size()], "send");
      if (transfers.of[static_cast<std::size_t>(from)][static_cast<std::size_t>(sent[0])] >= 0) continue;
      for (std::size_t t = 0; t < sent.size(); ++t) {
        const Transfer transfer{from, to, sent[t], received[t]};
        check_types(program, transfer);
        transfers.of[static_cast<std::size_t>(from)][static_cast<std::size_t>(sent[t])] = static_cast<std::int32_t>(transfers.all.size());
        transfers.of[static_cast<std::size_t>(to)][static_cast<std::size_t>(received[t])] = static_cast<std::int32_t>(transfers.all.size());
        transfers.all.push_back(transfer);
      }
    }
  return transfers;
}

void check_serial_order(const Program& program, const Transfers& transfers) {
  // Of each unordered pair, its transfers in the order of each end.
  std::unordered_map<std::uint64_t, std::vector<std::int32_t>> order;
  for (std::size_t d = 0; d < program.devices.size(); ++d)
    for (std::int32_t transfer : transfers.of[d]) {
      if (transfer < 0) continue;
      const Transfer& ends = transfers.all[static_cast<std::size_t>(transfer)];
      const std::int32_t low = std::min(ends.from, ends.to), high = std::max(ends.from, ends.to);
      std::vector<std::int32_t>& of_low = order[pair_key(low, high)];
      if (static_cast<std::int32_t>(d) == low) {
        of_low.push_back(transfer);
        continue;
      }
      // The lower device came first and left its whole list; the higher one compares, walking a second list along.
      std::vector<std::int32_t>& of_high = order[pair_key(high, low)];
      const std::int32_t expected = of_low[of_high.size()];
      if (expected == transfer) {
        of_high.push_back(transfer);
        continue;
      }
      const auto line = [&](std::int32_t device, std::int32_t t) {
        const Transfer& at = transfers.all[static_cast<std::size_t>(t)];
        const std::int32_t instruction = at.from == device ? at.sender : at.receiver;
        return place(program, device, static_cast<std::size_t>(instruction));
      };
      throw Error(
          concat("devices ", low, " and ", high, " start their transfers in different orders: one serial channel would never finish"),
          {concat("transfer ", of_high.size(), " of the pair is, to device ", low, ": ", line(low, expected)),
           concat("and to device ", high, ": ", line(high, transfer))});
    }
}

namespace {

// A transfer is done once both ends have started it: there is no buffer anywhere.
struct RendezvousMachine {
  const Transfers& transfers;
  std::vector<std::uint8_t> started;   // ends of each transfer
  const Instruction* first = nullptr;  // of the device that runs
  const std::int32_t* transfer_of = nullptr;
  std::vector<Event> waits_for;  // of each device
  std::vector<std::int32_t> woken;

  Event run(const Instruction&) { return kNoEvent; }
  Event start(const Instruction& instruction) {
    const std::int32_t transfer = transfer_of[&instruction - first];
    if (transfer < 0) return kNoEvent;  // input, output: the controller is always there
    if (++started[static_cast<std::size_t>(transfer)] == 2 && waits_for[static_cast<std::size_t>(instruction.peer)] == transfer) {
      waits_for[static_cast<std::size_t>(instruction.peer)] = kNoEvent;
      woken.push_back(instruction.peer);
    }
    return transfer;
  }
  bool done(Event event) const { return started[static_cast<std::size_t>(event)] == 2; }
  void release(SlotId) {}
};

// Devices that wait, each for the next, and the last for the first.
std::vector<std::int32_t> find_cycle(const Transfers& transfers, const std::vector<Event>& waits_for) {
  const auto peer = [&](std::int32_t device) {
    const Transfer& transfer = transfers.all[static_cast<std::size_t>(waits_for[static_cast<std::size_t>(device)])];
    return transfer.from == device ? transfer.to : transfer.from;
  };
  std::int32_t device = 0;
  while (waits_for[static_cast<std::size_t>(device)] == kNoEvent) ++device;
  // Walking as many edges as there are devices ends on the cycle.
  for (std::size_t i = 0; i < waits_for.size(); ++i) device = peer(device);
  std::vector<std::int32_t> cycle{device};
  while ((device = peer(device)) != cycle.front()) cycle.push_back(device);
  std::rotate(cycle.begin(), std::min_element(cycle.begin(), cycle.end()), cycle.end());
  return cycle;
}

[[noreturn]] void fail_deadlock(const Program& program, const Transfers& transfers, const std::vector<DeviceState>& states,
                                const std::vector<Event>& waits_for) {
  const std::vector<std::int32_t> cycle = find_cycle(transfers, waits_for);
  std::vector<std::string> lines;
  for (std::int32_t device : cycle) {
    const Transfer& transfer = transfers.all[static_cast<std::size_t>(waits_for[static_cast<std::size_t>(device)])];
    const bool sends = transfer.from == device;
    const std::size_t own = static_cast<std::size_t>(sends ? transfer.sender : transfer.receiver);
    const std::size_t others = static_cast<std::size_t>(sends ? transfer.receiver : transfer.sender);
    const std::int32_t peer = sends ? transfer.to : transfer.from;
    const std::size_t next = states[static_cast<std::size_t>(device)].next;
    const std::string where = next < program.devices[static_cast<std::size_t>(device)].instructions.size()
                                  ? place(program, device, next)
                                  : concat("device ", device, ", at its end");
    lines.push_back(concat(where, " waits for instruction ", own, " (", describe(program, device, own),
                           "), whose other end is instruction ", others, " of device ", peer));
  }
  throw Error(concat("program @", program.name, " can never finish: devices ",
                     join(cycle, ", ", [](std::int32_t device) { return std::to_string(device); }), " wait for each other"),
              lines);
}

}  // namespace

void check_progress(const Program& program, const Transfers& transfers) {
  const std::size_t devices = program.devices.size();
  RendezvousMachine machine{
      transfers, std::vector<std::uint8_t>(transfers.all.size(), 0), nullptr, nullptr, std::vector<Event>(devices, kNoEvent), {}};
  std::vector<DeviceState> states;
  states.reserve(devices);
  for (std::size_t d = devices; d-- > 0;) machine.woken.push_back(static_cast<std::int32_t>(d));
  for (const DeviceProgram& device : program.devices) states.emplace_back(device);
  std::size_t finished = 0;
  while (!machine.woken.empty()) {
    const std::size_t d = static_cast<std::size_t>(machine.woken.back());
    machine.woken.pop_back();
    machine.first = program.devices[d].instructions.data();
    machine.transfer_of = transfers.of[d].data();
    const Wait wait = advance(states[d], machine);
    machine.waits_for[d] = wait.event;
    if (wait.finished()) ++finished;
  }
  if (finished < devices) fail_deadlock(program, transfers, states, machine.waits_for);
}

}  // namespace penstock::checks
