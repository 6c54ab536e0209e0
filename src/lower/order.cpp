// Pass: both devices of a pair start all its transfers, in both directions, in the order in which one execution sends them. So a program
// also finishes where a pair has one queue (NCCL): what is first in it was sent first, and never waits for what comes after it.
#include <algorithm>
#include <map>

#include "lower/execution.h"
#include "lower/passes.h"

namespace penstock {
namespace {

// Posts each receive ahead of what its pair sends or reads after it, and behind what its device sends before it. In the execution it is
// sent after the latter and before its reader begins, so there is such a place.
void post_in_order(std::vector<Transfer>& transfers, const std::vector<std::int32_t>& sent) {
  std::map<std::pair<ActorId, ActorId>, std::int32_t> latest, earliest;  // (device, peer): a run
  for (auto number = sent.rbegin(); number != sent.rend(); ++number) {
    Transfer& t = transfers[static_cast<std::size_t>(*number)];
    latest[{t.from, t.to}] = t.after;
    std::int32_t& bound = latest.try_emplace({t.to, t.from}, t.before).first->second;
    t.before = bound = std::min(bound, t.before);
  }
  for (const std::int32_t number : sent) {
    Transfer& t = transfers[static_cast<std::size_t>(number)];
    earliest[{t.from, t.to}] = t.after + 1;
    t.before = std::max(t.before, earliest[{t.to, t.from}]);
  }
}

}  // namespace

void order_transfers(const LowerInput&, Draft& draft) {
  if (draft.transfers.empty()) return;
  Execution execution = execute(draft);
  std::vector<std::int32_t>& sent = execution.order;
  std::ranges::stable_sort(sent, {}, [&](std::int32_t number) { return execution.sent[static_cast<std::size_t>(number)]; });
  post_in_order(draft.transfers, sent);
  std::vector<Transfer> ordered;
  for (const std::int32_t number : sent) ordered.push_back(draft.transfers[static_cast<std::size_t>(number)]);
  for (std::size_t t = 0; t < draft.transfers.size(); ++t)  // refreshes
    if (execution.sent[t] == kNever) ordered.push_back(draft.transfers[t]);
  draft.transfers = std::move(ordered);
}

}  // namespace penstock
