// Pass: both devices of a pair start all its transfers, in both directions, in the order in which one execution sends them. So a program
// also finishes where a pair has one queue (NCCL): what is first in it was sent first, and never waits for what comes after it.
#include <algorithm>
#include <map>
#include <ranges>

#include "lower/execution.h"
#include "lower/passes.h"

namespace penstock {
namespace {

// Posts each receive ahead of what its pair sends or reads after it, and behind what its device sends before it. In the execution it is
// sent after the latter and before its reader begins, so there is such a place.
void post_in_order(IdVector<TransferId, Transfer>& transfers, const std::vector<TransferId>& sent) {
  std::map<std::pair<ActorId, ActorId>, std::int32_t> latest, earliest;  // (device, peer): a run
  for (const TransferId id : sent | std::views::reverse) {
    Transfer& t = transfers[id];
    latest[{t.from, t.to}] = t.after;
    std::int32_t& bound = latest.try_emplace({t.to, t.from}, t.before).first->second;
    t.before = bound = std::min(bound, t.before);
  }
  for (const TransferId id : sent) {
    Transfer& t = transfers[id];
    earliest[{t.from, t.to}] = t.after + 1;
    t.before = std::max(t.before, earliest[{t.to, t.from}]);
  }
}

}  // namespace

void order_transfers(const LowerInput&, Draft& draft) {
  if (draft.transfers.empty()) return;
  Execution execution = execute(draft);
  std::vector<TransferId>& sent = execution.order;
  std::ranges::stable_sort(sent, {}, [&](TransferId t) { return execution.sent[t]; });
  post_in_order(draft.transfers, sent);
  std::vector<Transfer> ordered;
  for (const TransferId t : sent) ordered.push_back(draft.transfers[t]);
  for (const TransferId t : draft.transfers.ids())  // refreshes
    if (execution.sent[t] == kNever) ordered.push_back(draft.transfers[t]);
  draft.transfers = std::move(ordered);
}

}  // namespace penstock
