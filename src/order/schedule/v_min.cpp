// SPDX-License-Identifier: Apache-2.0
// V-Min (Qi et al., Pipeline Parallelism with Controllable Memory, 2405.15362): ZB-V's placement with the shortest life of a
// micro-batch: F goes one step per actor down and up, then I the same. This building block repeats every 6 steps; running it as early
// as possible closes the gaps at both ends.
//
// Bubble, where F=I=W: 2(p-1)F - F/2, two thirds of 1F1B's, and F more where p is a multiple of 3; where F, I and W differ it grows
// with m. Peak (p+4)/3 A, rounded down; one copy of the parameters.
//
//   penstock schedule v-min --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 .   .   3F0 3I0 0F1 3W0 0I0 0W0 3F1 3I1 0F2 3W1 0I1 0W1 3F2 3I2 0F3 3W2 0I2 0W2 3F3 3I3 3W3 .   0I3 0W3
//   actor 1 | .   1F0 2F0 .   .   2I0 1I0 1F1 2F1 2W0 1W0 2I1 1I1 1F2 2F2 2W1 1W1 2I2 1I2 1F3 2F3 2W2 1W2 2I3 1I3 2W3 1W3
//   time 27, bubble 11.1 %, live 3 4
#include "schedule/folded.h"

namespace penstock {

Schedule v_min(const ScheduleOptions& options) {
  require_two_chunks("v-min", options);
  const int p = options.actors;
  // No two of an actor's four may meet in a step of the period: for multiples of 3 the backward waits two steps at the end of the V.
  const int wait = p % 3 == 0 ? 2 : 0;
  return repeat_block(options, (p + 4) / 3, [=](int r) { return BlockSteps{r, 2 * p - 1 - r, 2 * p + wait + r, 4 * p - 1 + wait - r}; });
}

}  // namespace penstock
