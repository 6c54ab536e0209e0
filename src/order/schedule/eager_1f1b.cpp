// SPDX-License-Identifier: Apache-2.0
// 1F1B with a deeper warm-up, K_i = 2(p-i)-1 (DAPPLE's second policy, 2007.01045, for slow links): a micro-batch is always on its
// way in each direction, so that the steady state waits for no transfer. --in-flight D is its memory bound, min(2(p-i)-1, D).
//
// Bubble (p-1)(F+B) plus 2(p-1) latencies of fill and drain; peak (2(p-i)-1)A on actor i; one copy of the parameters. The order is made
// for D >= 2p-1 (or m): below, the middle actors hold more than the first lets them have, and p = 4, m = 8 takes 38 for D = 5, not 33.
//
//   penstock schedule eager-1f1b --actors 4 --microbatches 6 --show
//   actor 0 | F0 F1 F2 F3 F4 F5 .  .  .  .  B0--- .  B1--- .  B2--- .  B3--- .  B4--- .  B5---
//   actor 1 | .  F0 F1 F2 F3 F4 .  .  B0--- F5 B1--- .  B2--- .  B3--- .  B4--- .  B5---
//   actor 2 | .  .  F0 F1 F2 .  B0--- F3 B1--- F4 B2--- F5 B3--- .  B4--- .  B5---
//   actor 3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5---
//   time 27, bubble 33.3 %, live 6 5 3 1
#include "schedule/generators.h"

namespace penstock {

Schedule eager_one_forward_one_backward(const ScheduleOptions& options) {
  return alternating(options, [&](int actor) { return 2 * (options.actors - actor) - 1; });
}

}  // namespace penstock
