// SPDX-License-Identifier: Apache-2.0
// Pass: both devices of a pair start all its transfers, in both directions, in the order in which one execution sends them. So a program
// also finishes where a pair has one queue (NCCL): what is first in it was sent first, and never waits for what comes after it. Transfers
// that the table places stay there: it has them in one order at both ends (order/schedule/transfers.h), and others go between them.
#include <algorithm>
#include <map>
#include <ranges>

#include "lower/execution.h"
#include "lower/passes.h"

namespace penstock {
namespace {

using DeviceAndPeer = std::pair<ActorId, ActorId>;

bool has_places(const Draft& draft, const Transfer& t) {
  const auto is = [&](ActorId device, std::int32_t r, Opcode opcode) {
    const std::vector<Run>& runs = draft.actors[device];
    return r < std::ssize(runs) && runs[r].opcode == opcode;
  };
  return is(t.from, t.after, Opcode::send) && is(t.to, t.before, Opcode::recv);
}

// Puts the transfers of a pair into the order in which the sender of each has it among those that the table places.
void sort_by_turn(const Draft& draft, std::vector<TransferId>& sent) {
  std::map<DeviceAndPeer, std::vector<std::int32_t>> placed;  // runs
  for (const Transfer& t : draft.transfers) {
    if (!has_places(draft, t)) continue;
    placed[{t.from, t.to}].push_back(t.after);
    placed[{t.to, t.from}].push_back(t.before);
  }
  if (placed.empty()) return;
  for (auto& [ends, runs] : placed) std::ranges::sort(runs);
  std::ranges::stable_sort(sent, {}, [&](TransferId id) {
    const Transfer& t = draft.transfers[id];
    const std::vector<std::int32_t>& runs = placed[{t.from, t.to}];
    return std::pair(std::ranges::upper_bound(runs, t.after) - runs.begin(), !has_places(draft, t));
  });
}

// Posts each receive ahead of what its pair sends or reads after it, and behind what its device sends before it. In the execution it is
// sent after the latter and before its reader begins, so there is such a place.
void post_in_order(Draft& draft, const std::vector<TransferId>& sent) {
  std::map<DeviceAndPeer, std::int32_t> latest, earliest;  // a run
  for (const TransferId id : sent | std::views::reverse) {
    Transfer& t = draft.transfers[id];
    latest[{t.from, t.to}] = t.after;
    std::int32_t& bound = latest.try_emplace({t.to, t.from}, t.before).first->second;
    bound = std::min(bound, t.before);
    if (!has_places(draft, t)) t.before = bound;
  }
  for (const TransferId id : sent) {
    Transfer& t = draft.transfers[id];
    earliest[{t.from, t.to}] = t.after + 1;
    std::int32_t& bound = earliest[{t.to, t.from}];
    if (has_places(draft, t))
      bound = std::max(bound, t.before + 1);
    else
      t.before = std::max(t.before, bound);
  }
}

}  // namespace

void order_transfers(const LowerInput&, Draft& draft) {
  if (draft.transfers.empty()) return;
  Execution execution = execute(draft);
  std::vector<TransferId>& sent = execution.order;
  const auto when = [&](TransferId t) { return execution.sent[t]; };
  std::ranges::stable_sort(sent, {}, when);
  sort_by_turn(draft, sent);
  post_in_order(draft, sent);
  std::map<DeviceAndPeer, double> last;  // of each pair, as one queue would carry them
  for (const TransferId id : sent) {
    const auto [low, high] = std::minmax(draft.transfers[id].from, draft.transfers[id].to);
    double& before = last[{low, high}];
    before = execution.sent[id] = std::max(before, execution.sent[id]);
  }
  std::ranges::stable_sort(sent, {}, when);
  std::vector<Transfer> ordered;
  for (const TransferId t : sent) ordered.push_back(draft.transfers[t]);
  for (const TransferId t : draft.transfers.ids())  // refreshes
    if (execution.sent[t] == kNever) ordered.push_back(draft.transfers[t]);
  draft.transfers = std::move(ordered);
}

}  // namespace penstock
