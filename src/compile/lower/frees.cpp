// SPDX-License-Identifier: Apache-2.0
// Pass: every step slot is freed as soon as nothing can need it.
//
// Where to free what was sent, or what a collective reads or writes, is the one choice that could deadlock: `free` waits until the peer has
// posted its receive, or the others have begun the collective. So one execution is timed, and such a slot is freed at the first run
// boundary at which that execution has finished its sends and collectives. Programs are deterministic (what a device waits for never
// depends on timing), so an order that one execution passes without waiting at its frees lets every execution finish.
#include <algorithm>

#include "lower/execution.h"
#include "lower/passes.h"
#include "lower/touches.h"

namespace penstock {
namespace {

// The first run after `r`: what takes the device no time does not count. The number of runs where there is none.
std::ptrdiff_t run_after(const std::vector<Run>& runs, std::int32_t r) {
  return std::find_if(runs.begin() + r + 1, runs.end(), [](const Run& run) { return !is_beside(run); }) - runs.begin();
}

// The run after which it is freed; the number of runs: at the end. It ends later than the receives of what is sent are posted and its
// collectives complete, not at the same time: a device posts after it has freed, and two whose runs end together could each wait for what
// the other posts next.
std::int32_t free_after(const Draft& draft, const Execution& execution, const TransfersOf& transfers, ActorId device, const Touch& touch) {
  double posted = -1;
  for (TransferId t : transfers[touch.instance])
    if (draft.transfers[t].from == device) posted = std::max(posted, execution.posted[t]);
  const std::vector<Run>& runs = draft.actors[device];
  // An instance that is being sent or copied to the host stays for one more run, so that the device computes while that takes its time.
  const bool leaves = posted >= 0 || is_beside(runs[touch.last_touch]);
  const std::ptrdiff_t earliest = leaves ? run_after(runs, touch.last_touch) : touch.last_touch;
  const auto& collected = execution.collected[device];
  if (const auto found = collected.find(touch.instance); found != collected.end()) posted = std::max(posted, found->second);
  const std::vector<double>& end = execution.end[device];
  const auto from = end.begin() + std::min(earliest, std::ssize(end));
  return static_cast<std::int32_t>(std::upper_bound(from, end.end(), posted) - end.begin());
}

}  // namespace

void place_frees(const LowerInput&, Draft& draft) {
  const Execution execution = execute(draft);
  const TransfersOf transfers(draft);
  Touches touches(draft);
  for (const ActorId device : draft.actors.ids())
    for (const Touch& touch : touches.of(draft, device))
      if (draft.instances[touch.instance].source != Instance::Source::state)
        draft.frees.push_back({touch.instance, device, free_after(draft, execution, transfers, device, touch)});
}

}  // namespace penstock
