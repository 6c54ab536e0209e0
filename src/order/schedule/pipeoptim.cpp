// SPDX-License-Identifier: Apache-2.0
// PipeOptim (Guan et al., 2312.00839): PipeDream in which forwards alone are predicted: each reads what the stage's parameters are
// predicted to be at its own step's update, from the newest in its row; a backward reads the newest as they are.
//
//   penstock schedule pipeoptim --actors 3 --microbatches 1 --window 4 --show
//   actor 0 | @0F0   @0+1F1 @0+2F2 .      .      .      .      @0B0--------- @1+2F3 @1B1--------- .      @2B2--------- .      @3B3---------
//   actor 1 | .      @0F0   @0+1F1 .      .      @0B0--------- @1+1F2 @1B1--------- @2+1F3 @2B2--------- .      @3B3---------
//   actor 2 | .      .      @0F0   @0B0--------- @1F1   @1B1--------- @2F2   @2B2--------- @3F3   @3B3---------
//   time 18, bubble 33.3 %, live 3 2 1
#include "schedule/generators.h"

namespace penstock {

Schedule pipeoptim(const ScheduleOptions& options) {
  Schedule schedule = pipedream(options);
  for (auto& row : schedule.actors) {
    std::int32_t made = 0;
    for (Action& action : row) {
      if (action.kind == Kind::U) {
        ++made;
        continue;
      }
      const std::int32_t step = action.microbatch / options.microbatches;
      action.version = made;
      if (action.kind == Kind::F) action.ahead = step - made;
    }
  }
  return schedule;
}

}  // namespace penstock
