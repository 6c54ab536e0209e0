// SPDX-License-Identifier: Apache-2.0
// All copies to the host start before anything else, those of what is updated first in front. An update waits for the copy of its state by
// the rules of slots, and for nothing else: what is sent is the copy.
//
//   offload %w -> update %snapshot0:w        on the owner, at the begin
//   send %snapshot0:w to 3 #0                there, between the runs ahead of the first update
//   recv %snapshot0:w from 1 #0              on the buddy, behind the receive that has the tag before it
//
// No transfer of a snapshot can stop a device: nothing but the step's end waits for it. A send waits for its copy, so the sends are spread
// over the first half of the runs ahead of the first update, as the copied bytes grow: the copies have that long, the transfers the rest.
#include "lower/snapshot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "base/invariant.h"
#include "program/memory_plan.h"
#include "program/snapshot_name.h"
#include "program/state_parts.h"
#include "program/verify.h"

namespace penstock {
namespace {

// A slot that a device copies to its host.
struct Offload {
  SlotId from;
  bool sends = false;  // to the device's buddy
};

// A program whose devices get instructions: [device][instruction] those ahead of it, the last list those behind all.
struct Insertion {
  Program program;
  std::vector<std::vector<std::vector<Instruction>>> ahead;
};

std::vector<SlotId> owned_slots(const DeviceProgram& device) {
  std::vector<SlotId> out;
  for (const SlotId slot : device.slots.ids())
    if (device.slots[slot].kind == SlotClass::state && !device.slots[slot].parts.empty()) out.push_back(slot);
  return out;
}

// By device what it copies to its host: what it owns, and copies that it keeps for others.
std::vector<std::vector<Offload>> find_offloads(const Program& program, const std::vector<std::int32_t>& buddies) {
  const auto devices = static_cast<std::int32_t>(program.devices.size());
  std::map<std::vector<std::string>, std::vector<std::pair<std::int32_t, SlotId>>> copies;  // by names of parts
  for (std::int32_t d = 0; d < devices; ++d)
    for (const SlotId slot : program.devices[d].slots.ids())
      if (const Slot& copy = program.devices[d].slots[slot]; copy.kind == SlotClass::copy) copies[copy.names].emplace_back(d, slot);
  std::vector<std::vector<Offload>> out(program.devices.size());
  for (std::int32_t owner = 0; owner < devices; ++owner)
    for (const SlotId slot : owned_slots(program.devices[owner])) {
      const std::int32_t buddy = buddies[owner];
      const auto found = buddy < 0 ? copies.end() : copies.find(program.devices[owner].slots[slot].names);
      out[owner].push_back({slot, buddy >= 0 && found == copies.end()});
      if (found == copies.end()) continue;
      const auto from_buddy = [&](const auto& copy) { return (copy.first - buddy + devices) % devices; };
      const auto [keeper, copy] = *std::ranges::min_element(found->second, {}, from_buddy);
      out[keeper].push_back({copy});
    }
  return out;
}

// By slot the first instruction that writes it, if it holds state; the number of instructions: there is none.
IdVector<SlotId, std::size_t> first_writes(const DeviceProgram& device) {
  IdVector<SlotId, std::size_t> out(device.slots.size(), device.instructions.size());
  for (std::size_t at = device.instructions.size(); at-- > 0;)
    for (const SlotId slot : checks::states_written(device, device.instructions[at])) out[slot] = at;
  return out;
}

// Adds a slot of each generation for what the slot holds; returns that of `generation`.
SlotId add_snapshots(DeviceProgram& device, const Slot& held, int generation) {
  for (int g = 0; g < kGenerations; ++g) {
    Slot& slot = device.slots.emplace_back();
    slot.kind = SlotClass::snapshot;
    slot.parts = held.parts;
    slot.room = held.room;
    for (const std::string& name : held.names) slot.names.push_back(snapshot_name(g, name));
    slot.name = slot.names.front();
  }
  return SlotId(std::ssize(device.slots) - kGenerations + generation);
}

Instruction offload(DeviceProgram& device, SlotId from, SlotId to) {
  Instruction out{.opcode = Opcode::offload, .operands = 1, .results = 1};
  out.first_operand = static_cast<std::uint32_t>(device.operands.size());
  out.first_result = static_cast<std::uint32_t>(device.results.size());
  device.operands.push_back(from);
  device.results.push_back({to, ResultMode::update});
  return out;
}

// The numbers of the instructions that send to the peer, or that receive from it.
std::vector<std::size_t> transfers_with(const DeviceProgram& device, Opcode opcode, std::int32_t peer) {
  std::vector<std::size_t> out;
  for (std::size_t at = 0; at < device.instructions.size(); ++at)
    if (device.instructions[at].opcode == opcode && device.instructions[at].peer == peer) out.push_back(at);
  return out;
}

// The instruction ahead of which each offload's contents are sent.
std::vector<std::size_t> sending_places(const DeviceProgram& device, const std::vector<Offload>& offloads, std::size_t first_update) {
  std::vector<std::size_t> behind_runs;
  for (std::size_t at = 0; at < first_update; ++at)
    if (device.instructions[at].opcode == Opcode::run) behind_runs.push_back(at + 1);
  const auto bytes_of = [&](const Offload& offload) { return static_cast<double>(slot_bytes(device.slots[offload.from])); };
  double all = 0, copied = 0;
  for (const Offload& offload : offloads) all += bytes_of(offload);
  std::vector<std::size_t> out;
  for (const Offload& offload : offloads) {
    copied += bytes_of(offload);
    const double runs = std::ceil(copied / std::max(all, 1.0) * static_cast<double>(behind_runs.size()) / 2);
    out.push_back(behind_runs.empty() ? first_update : behind_runs[static_cast<std::size_t>(std::max(runs, 1.0)) - 1]);
  }
  return out;
}

void insert_snapshots(Insertion& to, std::int32_t d, std::vector<Offload> offloads, int generation, std::int32_t buddy) {
  DeviceProgram& device = to.program.devices[d];
  if (offloads.empty()) return;
  const IdVector<SlotId, std::size_t> writes = first_writes(device);
  std::ranges::stable_sort(offloads, {}, [&](const Offload& offload) { return writes[offload.from]; });
  const std::vector<std::size_t> places = sending_places(device, offloads, writes[offloads.front().from]);
  const auto sends = transfers_with(device, Opcode::send, buddy);
  const auto receives = buddy < 0 ? sends : transfers_with(to.program.devices[buddy], Opcode::recv, d);
  for (std::size_t o = 0; o < offloads.size(); ++o) {
    const Slot held = device.slots[offloads[o].from];
    const SlotId kept = add_snapshots(device, held, generation);
    to.ahead[d].front().push_back(offload(device, offloads[o].from, kept));
    if (!offloads[o].sends) continue;
    to.ahead[d][places[o]].push_back({.opcode = Opcode::send, .slot = kept, .peer = buddy});
    const auto before = std::ranges::lower_bound(sends, places[o]) - sends.begin();
    to.ahead[buddy][before == 0 ? 0 : receives[before - 1] + 1].push_back(
        {.opcode = Opcode::recv, .slot = add_snapshots(to.program.devices[buddy], held, generation), .peer = d});
  }
}

// Puts them in, and numbers all transfers anew.
void carry_out(DeviceProgram& device, const std::vector<std::vector<Instruction>>& ahead) {
  std::vector<Instruction> all;
  for (std::size_t at = 0; at < ahead.size(); ++at) {
    all.insert(all.end(), ahead[at].begin(), ahead[at].end());
    if (at < device.instructions.size()) all.push_back(device.instructions[at]);
  }
  std::map<std::pair<Opcode, std::int32_t>, std::int32_t> next;
  for (Instruction& i : all)
    if (i.opcode == Opcode::send || i.opcode == Opcode::recv) i.tag = next[{i.opcode, i.peer}]++;
  device.instructions = std::move(all);
}

}  // namespace

Program with_snapshot(const Program& program, int generation, const std::vector<std::int32_t>& buddies) {
  invariant(0 <= generation && generation < kGenerations, "there is such a generation");
  invariant(buddies.size() == program.devices.size(), "each device has a buddy or none");
  Insertion inserted{program, {}};
  for (const DeviceProgram& device : program.devices) inserted.ahead.emplace_back(device.instructions.size() + 1);
  const std::vector<std::vector<Offload>> offloads = find_offloads(program, buddies);
  for (std::size_t d = 0; d < offloads.size(); ++d)
    insert_snapshots(inserted, static_cast<std::int32_t>(d), offloads[d], generation, buddies[d]);
  Program out = std::move(inserted.program);
  for (std::size_t d = 0; d < out.devices.size(); ++d) carry_out(out.devices[d], inserted.ahead[d]);
  plan_memory(out);
  verify(out);
  return out;
}

std::vector<std::int32_t> buddies_of(int devices, int devices_per_host) {
  const bool one_host = devices <= devices_per_host;
  std::vector<std::int32_t> out;
  for (int d = 0; d < devices; ++d) {
    int buddy = (d + (one_host ? 1 : devices_per_host)) % devices;
    while (!one_host && buddy / devices_per_host == d / devices_per_host) buddy = (buddy + 1) % devices;
    out.push_back(buddy == d ? -1 : buddy);
  }
  return out;
}

}  // namespace penstock
