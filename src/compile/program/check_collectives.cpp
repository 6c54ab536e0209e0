// SPDX-License-Identifier: Apache-2.0
// Checks of collectives: all members take part, in order, and do the same; and one global order exists.
#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "program/checks.h"

namespace penstock::checks {
namespace {

const Instruction& instruction_of(const Program& program, const Collective& collective, std::size_t member) {
  const std::int32_t device = program.groups[collective.group][member];
  return program.devices[device].instructions[collective.instructions[member]];
}

std::string place_of(const Program& program, const Collective& collective, std::size_t member) {
  return place(program, program.groups[collective.group][member], collective.instructions[member]);
}

// A text of the types that a member gives and takes, for comparison; in a broadcast the giver and the others have a slot of one type.
std::string types_of(const DeviceProgram& device, const Instruction& i) {
  std::string out;
  const auto show = [&](SlotId id) {
    const Slot& slot = device.slots[id];
    return concat(slot.parts.empty() ? "" : name(slot.parts[0].dtype), " in ", slot_bytes(slot), " bytes");
  };
  for (SlotId operand : device.operands_of(i)) out += show(operand);
  if (i.opcode != Opcode::broadcast) out += " -> ";
  for (const Result& result : device.results_of(i)) out += show(result.slot);
  return out;
}

void check_alike(const Program& program, const Collective& collective) {
  const std::vector<std::int32_t>& members = program.groups[collective.group];
  const auto shown = [&](std::size_t m) {
    const Instruction& i = instruction_of(program, collective, m);
    const std::string giver = i.opcode == Opcode::broadcast ? concat(" from ", i.peer) : "";
    return concat(name(i.opcode), giver, " of ", types_of(program.devices[members[m]], i));
  };
  const std::string first = shown(0);
  for (std::size_t m = 1; m < members.size(); ++m) {
    if (shown(m) == first) continue;
    throw Error(concat(place_of(program, collective, m), ": the members of group ", collective.group, " do different things"),
                {concat("this: ", shown(m)), concat(place_of(program, collective, 0), ": ", first)},
                "the members of a group run one program");
  }
  const Instruction& any = instruction_of(program, collective, 0);
  if (any.opcode != Opcode::broadcast) return;
  if (!std::binary_search(members.begin(), members.end(), any.peer))
    throw Error(concat(place_of(program, collective, 0), ": device ", any.peer, ", which is to give, is no member of the group"));
  for (std::size_t m = 0; m < members.size(); ++m)
    if ((instruction_of(program, collective, m).operands == 1) != (members[m] == any.peer))
      throw Error(concat(place_of(program, collective, m), ": device ", any.peer, " alone gives"));
}

// The collectives in an order in which every device can start its own. The list is incomplete where there is no such order.
std::vector<std::int32_t> global_order(const Program& program, const Transfers& transfers) {
  const auto own = [&](std::size_t device, std::size_t from) {  // the next of the device's collectives from position `from` on
    const std::vector<std::int32_t>& of = transfers.of[device];
    while (from < of.size() && of[from] < std::ssize(transfers.all)) ++from;
    return from;
  };
  std::vector<std::size_t> next(program.devices.size());
  std::vector<std::size_t> arrived(transfers.collectives.size());
  std::vector<std::int32_t> order, devices;
  for (std::size_t d = 0; d < next.size(); ++d) {
    next[d] = own(d, 0);
    devices.push_back(static_cast<std::int32_t>(d));
  }
  while (!devices.empty()) {
    const std::size_t d = devices.back();
    devices.pop_back();
    if (next[d] >= transfers.of[d].size()) continue;
    const std::int32_t number = transfers.of[d][next[d]] - static_cast<std::int32_t>(transfers.all.size());
    const Collective& collective = transfers.collectives[number];
    const std::vector<std::int32_t>& members = program.groups[collective.group];
    if (++arrived[number] < members.size()) continue;
    order.push_back(number);
    for (std::int32_t member : members) {
      const std::size_t m = member;
      next[m] = own(m, next[m] + 1);
      devices.push_back(member);
    }
  }
  return order;
}

[[noreturn]] void fail_order(const Program& program, const Transfers& transfers, const std::vector<std::int32_t>& order) {
  std::vector<bool> ordered(transfers.collectives.size());
  for (std::int32_t number : order) ordered[number] = true;
  std::vector<std::string> lines;
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    const auto waits = std::find_if(transfers.of[d].begin(), transfers.of[d].end(), [&](std::int32_t t) {
      const auto number = static_cast<std::int64_t>(t) - static_cast<std::int64_t>(transfers.all.size());
      return number >= 0 && !ordered[number];
    });
    if (waits != transfers.of[d].end())
      lines.push_back(place(program, static_cast<int>(d), static_cast<std::size_t>(waits - transfers.of[d].begin())));
  }
  throw Error("collectives of overlapping groups are started in different orders: one queue of collectives per device would never finish",
              lines, "start them in one order on all devices");
}

}  // namespace

void check_collectives(const Program& program, const Transfers& transfers) {
  for (const Collective& collective : transfers.collectives) check_alike(program, collective);
  const std::vector<std::int32_t> order = global_order(program, transfers);
  if (order.size() < transfers.collectives.size()) fail_order(program, transfers, order);
}

}  // namespace penstock::checks
