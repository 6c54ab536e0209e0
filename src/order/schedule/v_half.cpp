// SPDX-License-Identifier: Apache-2.0
// V-Half (Qi et al., Pipeline Parallelism with Controllable Memory, 2405.15362): ZB-V's placement, but the second chunk's F follows so
// soon that a micro-batch lives half as long. One building block, in which F goes two steps per actor down and one up, and I the
// same, repeats every 6 steps; running it as early as possible closes the gaps at both ends.
//
// Bubble, where F=I=W: 3(p-1)F/2, half of 1F1B's, for even p, and F/2 less for odd p; peak (p/2+1)A, rounded down; one copy
// of the parameters.
//
//   penstock schedule v-half --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 .   .   3F0 0F1 3I0 3W0 3F1 0F2 0I0 3I1 0W0 3W1 3F2 0F3 0I1 3I2 0W1 3W2 3F3 .   0I2 3I3 0W2 3W3 0I3 0W3
//   actor 1 | .   1F0 2F0 .   .   1F1 2F1 2I0 1I0 2W0 1F2 1W0 2F2 2I1 1I1 2W1 1F3 1W1 2F3 2I2 1I2 2W2 1W2 2I3 1I3 2W3 1W3
//   time 27, bubble 11.1 %, live 4 4
#include <algorithm>

#include "schedule/folded.h"
#include "schedule/in_order.h"

namespace penstock {

Schedule repeat_block(const ScheduleOptions& options, int live, const std::function<BlockSteps(int actor)>& block) {
  constexpr int kPeriod = 6;
  const int p = options.actors, m = options.microbatches;
  InOrder order{.live = 2 * live};
  for (int r = 0; r < p; ++r) {
    const std::int32_t down = r, up = folded_stage(p, 1, r);
    const std::array<Action, 4> kinds = {{{down, Kind::F}, {up, Kind::F}, {up, Kind::I}, {down, Kind::I}}};
    const BlockSteps begin = block(r);
    std::vector<std::pair<int, Action>> timed;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      for (int j = 0; j < m; ++j) timed.emplace_back(begin[k] + kPeriod * j, Action{kinds[k].stage, kinds[k].kind, j});
    }
    std::sort(timed.begin(), timed.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Action>& row = order.lists.emplace_back(1)[0];
    for (const auto& [begin_at, action] : timed) row.push_back(action);
  }
  EngineWork work = folded_work(p, 2, m);
  work.split = true;
  return in_order(order, work);
}

Schedule v_half(const ScheduleOptions& options) {
  require_two_chunks("v-half", options);
  const int p = options.actors;
  // No two of an actor's four may meet in a step of the period: for even p the backward waits three steps at the end of the V.
  const int wait = p % 2 == 0 ? 3 : 0;
  return repeat_block(options, p / 2 + 1,
                      [=](int r) { return BlockSteps{2 * r, 3 * p - 2 - r, 3 * p - 1 + wait + 2 * r, 6 * p - 2 + wait - r}; });
}

}  // namespace penstock
