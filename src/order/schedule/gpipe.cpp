// SPDX-License-Identifier: Apache-2.0
// GPipe: all forwards, then all backwards (Huang et al., 1811.06965). With chunks each runs all its micro-batches before
// the next starts, as in breadth-first, whose backwards go in the reverse order.
//
// Bubble (p-1)(F+B)/v; peak mA.
//
//   penstock schedule gpipe --actors 4 --microbatches 4 --show
//   actor 0 | F0 F1 F2 F3 .  .  .  .  .  .  .  .  .  B0--- B1--- B2--- B3---
//   actor 1 | .  F0 F1 F2 F3 .  .  .  .  .  .  B0--- B1--- B2--- B3---
//   actor 2 | .  .  F0 F1 F2 F3 .  .  .  B0--- B1--- B2--- B3---
//   actor 3 | .  .  .  F0 F1 F2 F3 B0--- B1--- B2--- B3---
//   time 21, bubble 42.9 %, live 4 4 4 4
#include "schedule/generators.h"

namespace penstock {

Schedule chunk_by_chunk(const ScheduleOptions& options, bool reverse_backwards) {
  const int last = options.microbatches - 1;
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    for (int c = 0; c < options.chunks; ++c) {
      for (int m = 0; m <= last; ++m) row.push_back({c * options.actors + r, Kind::F, m});
    }
    for (int c = options.chunks - 1; c >= 0; --c) {
      for (int m = 0; m <= last; ++m) row.push_back({c * options.actors + r, Kind::B, reverse_backwards ? last - m : m});
    }
  }
  return schedule;
}

Schedule gpipe(const ScheduleOptions& options) {
  return chunk_by_chunk(options, false);
}

}  // namespace penstock
