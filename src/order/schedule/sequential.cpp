// SPDX-License-Identifier: Apache-2.0
// One micro-batch after the other, with no two stages at work at once: the reference every other schedule is compared with.
//
// Bubble (1 - 1/p) of the time; peak one micro-batch of activations.
//
//   penstock schedule sequential --actors 2 --microbatches 3 --show
//   actor 0 | F0 .  .  .  B0--- F1 .  .  .  B1--- F2 .  .  .  B2---
//   actor 1 | .  F0 B0--- .  .  .  F1 B1--- .  .  .  F2 B2---
//   time 18, bubble 50.0 %, live 1 1
#include "schedule/generators.h"

namespace penstock {

Schedule sequential(const ScheduleOptions& options) {
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    for (int m = 0; m < options.microbatches; ++m) {
      for (int c = 0; c < options.chunks; ++c) row.push_back({c * options.actors + r, Kind::F, m});
      for (int c = options.chunks - 1; c >= 0; --c) row.push_back({c * options.actors + r, Kind::B, m});
    }
  }
  return schedule;
}

}  // namespace penstock
