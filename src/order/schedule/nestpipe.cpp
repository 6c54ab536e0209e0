// SPDX-License-Identifier: Apache-2.0
// ZB-H1 for a window of steps, each drained before the next begins, as without a window: all read the newest version. What the window is
// for is that the next step's data are there: NestPipe (2604.06956) looks its rows of embeddings up while this step computes
// (lower/lookups.cpp). The backward is split because the table's stage is first: once the dense stages have given it their gradients of
// rows, their weight gradients run beside its backward, its update and its next forward, which nothing else could without being late.
//
//   penstock schedule nestpipe --actors 2 --microbatches 2 --window 2 --show
//   actor 0 | F0 F1 .  I0 W0 I1 W1 F2 F3 .  I2 W2 I3 W3
//   actor 1 | .  F0 I0 F1 I1 W0 W1 .  F2 I2 F3 I3 W2 W3
//   time 14, bubble 14.3 %, live 2 2
#include "schedule/generators.h"

namespace penstock {

Schedule nestpipe(const ScheduleOptions& options) {
  return repeated(zero_bubble_h1(options), options.window);
}

}  // namespace penstock
