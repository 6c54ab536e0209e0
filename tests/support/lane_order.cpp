// SPDX-License-Identifier: Apache-2.0
#include "support/lane_order.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

namespace penstock::test {
namespace {

struct Access {
  int arena;
  std::int64_t begin, end;
  bool writes;
};

bool overlap(const Access& a, const Access& b) {
  return a.arena == b.arena && a.begin < b.end && b.begin < a.end;
}

// Accesses of each instruction that is no free.
std::vector<std::vector<Access>> accesses(const DeviceProgram& device) {
  std::vector<std::vector<Access>> out;
  for (const Instruction& i : device.instructions) {
    if (i.opcode == Opcode::free) continue;
    std::vector<Access>& all = out.emplace_back();
    const auto touch = [&](SlotId id, bool writes) {
      const Slot& slot = device.slots[id.index()];
      const int arena = slot.kind == SlotClass::copy ? static_cast<int>(SlotClass::state) : static_cast<int>(slot.kind);
      all.push_back({arena, slot.offset, slot.offset + slot_bytes(slot), writes});
    };
    if (!has_operands(i.opcode)) {
      touch(i.slot, i.opcode == Opcode::recv || i.opcode == Opcode::input);
      continue;
    }
    for (const SlotId operand : device.operands_of(i)) touch(operand, false);
    for (const Result& result : device.results_of(i)) {
      touch(result.slot, true);
      if (result.mode == ResultMode::add) touch(result.slot, false);
    }
  }
  return out;
}

// Points in time, and which of them come before which.
class AccessGraph {
 public:
  int node() {
    next_.emplace_back();
    return static_cast<int>(next_.size()) - 1;
  }
  void edge(int from, int to) { next_[static_cast<std::size_t>(from)].push_back(to); }

  // Bit `to` of out[from]: there is a way. The graph has no cycles.
  std::vector<std::vector<bool>> ways() const {
    std::vector<std::vector<bool>> out(next_.size());
    for (std::size_t n = 0; n < next_.size(); ++n) visit(n, out);
    return out;
  }

 private:
  void visit(std::size_t n, std::vector<std::vector<bool>>& out) const {
    if (!out[n].empty()) return;
    std::vector<bool> reached(next_.size());
    for (const int to : next_[n]) {
      const auto t = static_cast<std::size_t>(to);
      visit(t, out);
      reached[t] = true;
      for (std::size_t m = 0; m < reached.size(); ++m)
        if (out[t][m]) reached[m] = true;
    }
    out[n] = std::move(reached);
  }

  std::vector<std::vector<int>> next_;
};

using Name = std::array<std::int32_t, 4>;

// Both ends of a transfer, or all members of a collective, name it alike.
Name name_of(const Instruction& i, std::int32_t device) {
  if (is_collective(i.opcode)) return {-1, i.group, i.tag, 0};
  return i.opcode == Opcode::send ? Name{0, device, i.peer, i.tag} : Name{0, i.peer, device, i.tag};
}

// The node of each work's access, by device. A transfer's access is one for all its ends: after all have begun, before any is done.
std::vector<std::vector<int>> draw_accesses(AccessGraph& graph, const Program& program, const LaneCalls& calls,
                                            std::optional<LeftOut> left_out) {
  std::map<Name, int> shared;
  std::vector<std::vector<int>> access(calls.size());
  for (std::size_t d = 0; d < calls.size(); ++d) {
    std::vector<const Instruction*> works;
    for (const Instruction& i : program.devices[d].instructions)
      if (i.opcode != Opcode::free) works.push_back(&i);
    std::array<std::vector<int>, kLanes> before;  // what the lane's next item begins after
    std::map<Event, int> done;
    for (std::size_t c = 0; c < calls[d].size(); ++c) {
      const LaneCall& call = calls[d][c];
      std::vector<int>& waits = before[static_cast<std::size_t>(call.lane)];
      if (call.kind == LaneCall::Kind::after) {
        if (!left_out || left_out->device != d || left_out->call != c) waits.push_back(done.at(call.event));
        continue;
      }
      const int begin = graph.node();
      for (const int wait : waits) graph.edge(wait, begin);
      waits = {begin};
      done[call.event] = begin;
      if (call.kind == LaneCall::Kind::record) continue;
      const bool transfer = call.lane == DeviceLane::transfer;
      int at = 0;
      if (transfer) {
        const auto [entry, fresh] = shared.try_emplace(name_of(*works[access[d].size()], static_cast<std::int32_t>(d)));
        if (fresh) entry->second = graph.node();
        at = entry->second;
      } else {
        at = graph.node();
      }
      const int end = graph.node();
      graph.edge(begin, at);
      graph.edge(at, end);
      if (!transfer) waits = {end};
      done[call.event] = end;
      access[d].push_back(at);
    }
  }
  return access;
}

}  // namespace

std::vector<Conflict> conflicts(const Program& program) {
  std::vector<Conflict> out;
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    const auto all = accesses(program.devices[d]);
    const auto writes_between = [&](std::size_t first, std::size_t second, const Access& where) {
      for (std::size_t k = first + 1; k < second; ++k)
        if (std::ranges::any_of(all[k], [&](const Access& a) { return a.writes && overlap(a, where); })) return true;
      return false;
    };
    for (std::size_t second = 0; second < all.size(); ++second)
      for (std::size_t first = 0; first < second; ++first) {
        bool meet = false, seen = false;
        for (const Access& a : all[first])
          for (const Access& b : all[second]) {
            if (!overlap(a, b) || !(a.writes || b.writes)) continue;
            meet = true;
            seen = seen || !a.writes || (!b.writes && !writes_between(first, second, b));
          }
        if (meet) out.push_back({d, first, second, seen});
      }
  }
  return out;
}

std::vector<Conflict> unordered(const Program& program, const LaneCalls& calls, std::optional<LeftOut> left_out) {
  AccessGraph graph;
  const auto access = draw_accesses(graph, program, calls, left_out);
  const auto ways = graph.ways();
  std::vector<Conflict> out = conflicts(program);
  std::erase_if(out, [&](const Conflict& c) {
    return ways[static_cast<std::size_t>(access[c.device][c.first])][static_cast<std::size_t>(access[c.device][c.second])];
  });
  return out;
}

}  // namespace penstock::test
