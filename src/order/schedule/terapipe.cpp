// SPDX-License-Identifier: Apache-2.0
// TeraPipe (Li et al., 2102.07988): sequences are cut into slices, and as attention is causal a slice needs only those before it: actors
// work on slices of one sequence at once. All slices of all micro-batches go forward, then back in the reverse order.
//
// Slices that take t_j: sum t_j + (p-1) max t_j for the forwards, and for the backwards, so that n equal slices leave a bubble of
// (p-1)(F+B)/n; peak mA; one copy of the parameters. Slices behind others take longer (attention), so --slices of equal length are not the
// best: the lengths that the paper finds go to --slice-times as what they take.
//
//   penstock schedule terapipe --actors 3 --microbatches 2 --slices 2 --show
//   actor 0 | 0.0F0 0.1F0 0.0F1 0.1F1 .     .     .     .     .     .     0.1B1------ 0.0B1------ 0.1B0------ 0.0B0------
//   actor 1 | .     1.0F0 1.1F0 1.0F1 1.1F1 .     .     .     1.1B1------ 1.0B1------ 1.1B0------ 1.0B0------
//   actor 2 | .     .     2.0F0 2.1F0 2.0F1 2.1F1 2.1B1------ 2.0B1------ 2.1B0------ 2.0B0------
//   time 18, bubble 33.3 %, live 4 4 4
#include "schedule/generators.h"

namespace penstock {

Schedule terapipe(const ScheduleOptions& options) {
  const int n = options.slices, pieces = options.microbatches * n;
  Schedule schedule;
  schedule.slices = n;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    for (int k = 0; k < pieces; ++k) row.push_back({r * n + k % n, Kind::F, k / n});
    for (int k = pieces; k-- > 0;) row.push_back({r * n + k % n, Kind::B, k / n});
  }
  return schedule;
}

}  // namespace penstock
