// SPDX-License-Identifier: Apache-2.0
// ZB-H1 (Qi et al., Zero Bubble, 2401.10241): the backward is split, input gradients go out at once, and weight gradients fill the
// idle time of the drain. Actor r runs p-r forwards, then for each micro-batch j: I(j), W(j-r), the next F; then the remaining W.
//
// Bubble (p-1)(F+I-W), a third of 1F1B's where F=I=W; peak pA on every actor, held until W.
//
//   penstock schedule zb-h1 --actors 4 --microbatches 6 --show
//   actor 0 | F0 F1 F2 F3 .  .  .  I0 W0 F4 I1 W1 F5 I2 W2 I3 W3 I4 W4 I5 W5
//   actor 1 | .  F0 F1 F2 .  .  I0 F3 I1 W0 F4 I2 W1 F5 I3 W2 I4 W3 I5 W4 W5
//   actor 2 | .  .  F0 F1 .  I0 F2 I1 F3 I2 W0 F4 I3 W1 F5 I4 W2 I5 W3 W4 W5
//   actor 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 W3 W4 W5
//   time 21, bubble 14.3 %, live 4 4 4 4
#include "schedule/generators.h"

namespace penstock {

Schedule zero_bubble(const ScheduleOptions& options, const std::function<ZeroBubbleActor(int actor)>& turns) {
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    const auto [ahead, delay] = turns(r);
    take_turns(options.microbatches, ahead, delay, [&](Kind kind, int j) { row.push_back({r, kind, j}); });
  }
  return schedule;
}

Schedule zero_bubble_h1(const ScheduleOptions& options) {
  return zero_bubble(options, [&](int r) { return ZeroBubbleActor{.ahead = options.actors - r, .delay = r}; });
}

}  // namespace penstock
