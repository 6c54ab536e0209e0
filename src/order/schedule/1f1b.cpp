// SPDX-License-Identifier: Apache-2.0
// 1F1B (PipeDream-Flush, Narayanan et al., 2006.09503; the early backward of DAPPLE, 2007.01045): actor i keeps at most p-i
// micro-batches, one for each stage from it to the end. --in-flight D makes it DAPPLE's first policy, min(p-i, D).
//
// Bubble (p-1)(F+B), as GPipe; peak (p-i)A on actor i; one copy of the parameters. A D below p costs time: 48 for 33 with p = 4, m = 8
// and D = 3. A transfer's latency is paid in every round: eager-1f1b hides it.
//
//   penstock schedule 1f1b --actors 4 --microbatches 6 --show
//   actor 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- .  B3--- .  B4--- .  B5---
//   actor 1 | .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- .  B4--- .  B5---
//   actor 2 | .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- .  B5---
//   actor 3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5---
//   time 27, bubble 33.3 %, live 4 3 2 1
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {

Schedule alternating(const ScheduleOptions& options, const std::function<int(int actor)>& warm_up) {
  const int n = options.slices, pieces = options.microbatches * n;
  Schedule schedule;
  schedule.slices = n;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    const int ahead = options.in_flight > 0 ? std::min(warm_up(r), options.in_flight * n) : warm_up(r);
    take_turns(pieces, ahead, [&](Kind kind, int k) { row.push_back({r * n + (kind == Kind::F ? k % n : n - 1 - k % n), kind, k / n}); });
  }
  return schedule;
}

Schedule one_forward_one_backward(const ScheduleOptions& options) {
  return alternating(options, [&](int actor) { return options.actors - actor; });
}

}  // namespace penstock
