// SPDX-License-Identifier: Apache-2.0
// kFkB (Ada-Grouper, 2303.01675): 1f1b in bunches of k micro-batches, k forwards and k backwards in turn. While one micro-batch of a bunch
// is on its way the next computes, so that k = 2 hides a latency of up to F where 1f1b waits in every round.
//
// Bubble (p-1)(F+B) for any k (k = 1 is 1f1b, k = m gpipe); peak k(p-i)A on actor i, at most mA; one copy of the parameters. --group gives
// k, 2 unless said. With latency L <= (k-1)F only fill and drain pay: 2(p-1)L.
//
//   penstock schedule kfkb --actors 4 --microbatches 8 --show
//   actor 0 | F0 F1 F2 F3 F4 F5 F6 F7 .  .  .  B0--- B1--- .  .  B2--- B3--- .  .  B4--- B5--- .  .  B6--- B7---
//   actor 1 | .  F0 F1 F2 F3 F4 F5 .  .  B0--- B1--- F6 F7 B2--- B3--- .  .  B4--- B5--- .  .  B6--- B7---
//   actor 2 | .  .  F0 F1 F2 F3 .  B0--- B1--- F4 F5 B2--- B3--- F6 F7 B4--- B5--- .  .  B6--- B7---
//   actor 3 | .  .  .  F0 F1 B0--- B1--- F2 F3 B2--- B3--- F4 F5 B4--- B5--- F6 F7 B6--- B7---
//   time 33, bubble 27.3 %, live 8 6 4 2
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {

Schedule k_forward_k_backward(const ScheduleOptions& options) {
  const int m = options.microbatches, k = options.group > 0 ? std::min(options.group, m) : 2;
  const int bunches = (m + k - 1) / k;  // the last may be smaller
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    take_turns(bunches, options.actors - r, [&](Kind kind, int bunch) {
      for (int j = bunch * k; j < std::min(bunch * k + k, m); ++j) row.push_back({r, kind, j});
    });
  }
  return schedule;
}

}  // namespace penstock
