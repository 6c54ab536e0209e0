// SPDX-License-Identifier: Apache-2.0
// ZB-H2 (Qi et al., Zero Bubble, 2401.10241): ZB-H1 with so many forwards ahead that the fill leaves no idle time either. Actor r runs
// 2(p-r)-1 forwards, then for each micro-batch j: I(j), W(j-2r), the next F; then the remaining W.
//
// Bubble (p-1)(F+I-2W) in each actor's own span, 0 where F=I=W; as actors end one after the other, a step that is a barrier for all still
// takes m(F+B) + (p-1)F. Peak (2p-1)A on every actor, held until W; one copy of the parameters. Needs m >= 2p-1 for this time.
//
// --transfers x (time of a transfer over F) makes it latency-aware: floor(2(p-r)-1 + 2x(p-1-r)) forwards, W after floor(2r(1+x)); links
// of different x are summed over the links between actor r and the last, or the first. With p = 4, m = 8 and latency 1/2 and 1 on every
// link it takes 29 and 32 at a peak of 8.
//
//   penstock schedule zb-h2 --actors 4 --microbatches 8 --show
//   actor 0 | F0 F1 F2 F3 F4 F5 F6 I0 W0 F7 I1 W1 I2 W2 I3 W3 I4 W4 I5 W5 I6 W6 I7 W7
//   actor 1 | .  F0 F1 F2 F3 F4 I0 F5 I1 F6 I2 W0 F7 I3 W1 I4 W2 I5 W3 I6 W4 I7 W5 W6 W7
//   actor 2 | .  .  F0 F1 F2 I0 F3 I1 F4 I2 F5 I3 F6 I4 W0 F7 I5 W1 I6 W2 I7 W3 W4 W5 W6 W7
//   actor 3 | .  .  .  F0 I0 F1 I1 F2 I2 F3 I3 F4 I4 F5 I5 F6 I6 W0 F7 I7 W1 W2 W3 W4 W5 W6 W7
//   time 27, bubble 11.1 %, live 7 7 7 7
#include <cmath>
#include <numeric>

#include "schedule/generators.h"

namespace penstock {

Schedule zero_bubble_h2(const ScheduleOptions& options) {
  const std::vector<double> transfers = link_transfers(options);
  return zero_bubble(options, [&](int r) {
    const double before = std::accumulate(transfers.begin(), transfers.begin() + r, 0.0);
    const double after = std::accumulate(transfers.begin() + r, transfers.end(), 0.0);
    const auto whole = [&](double count) { return static_cast<int>(std::min<double>(std::floor(count + 1e-9), options.microbatches)); };
    return ZeroBubbleActor{.ahead = whole(2 * (options.actors - r) - 1 + 2 * after), .delay = whole(2 * (r + before))};
  });
}

}  // namespace penstock
