// SPDX-License-Identifier: Apache-2.0
// Self-conditioning (Chen et al., 2208.04202, as DiffusionPipe has it, 2405.01248, section 4): a micro-batch goes forward through all
// stages, without a backward, and what comes out enters the first stage again, beside the micro-batch, for the forward and backward that
// train. The first way's stages are stages of their own here, 0 to p-1, on the actors of those that train.
//
// An actor runs all first forwards before it trains, so 1F1B begins max(m, p) F later than without: time max(m, p) F + (m + p - 1)(F + B).
// Peak as 1F1B's: the first forwards keep nothing but what they hand on.
//
//   penstock schedule 1f1b --actors 2 --microbatches 3 --self-conditioning --show
//   actor 0 | 0F0 0F1 0F2 2F0 2F1 .   .   2B0---- 2F2 2B1---- .   2B2----
//   actor 1 | .   1F0 1F1 1F2 3F0 3B0---- 3F1 3B1---- 3F2 3B2----
//   time 15, bubble 20.0 %, live 2 1
#include "schedule/forward_stages.h"
#include "schedule/generators.h"

namespace penstock {

Schedule self_conditioned(Schedule schedule) {
  const std::int32_t microbatches = schedule.microbatches();
  add_forward_stages(schedule, std::vector<double>(static_cast<std::size_t>(schedule.whole_stages()), 1));
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor) {
    std::vector<Action> forwards;
    for (std::int32_t m = 0; m < microbatches; ++m) forwards.push_back({static_cast<std::int32_t>(actor), Kind::F, m});
    schedule.actors[actor].insert(schedule.actors[actor].begin(), forwards.begin(), forwards.end());
  }
  return schedule;
}

}  // namespace penstock
