// SPDX-License-Identifier: Apache-2.0
// PipeDream (Narayanan et al., SOSP 2019; 1806.03377): 1F1B that is never drained. A stage is updated as soon as it has gone back through a
// step's micro-batches, while those of the next steps are under way. An F reads the newest parameters in its row, a B those that its F read
// (weight stashing): with one micro-batch a step, sample x goes through version max(0, x - (p-1-i)) of stage i.
//
// A window of K steps takes (Km+p-1)(F+B), so its share of idle time is (p-1)/(Km+p-1); peak (p-i)A on actor i, and with one micro-batch a
// step p-i versions of its parameters. The longer the window, the less is lost where it ends: there all is drained.
//
//   penstock schedule pipedream --actors 4 --microbatches 1 --window 6 --show
//   actor 0 | F0 F1 F2 F3 .  .  .  .  .  .  B0--- F4 B1--- F5 B2--- .  B3--- .  B4--- .  B5---
//   actor 1 | .  F0 F1 F2 .  .  .  .  B0--- F3 B1--- F4 B2--- F5 B3--- .  B4--- .  B5---
//   actor 2 | .  .  F0 F1 .  .  B0--- F2 B1--- F3 B2--- F4 B3--- F5 B4--- .  B5---
//   actor 3 | .  .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5---
//   time 27, bubble 33.3 %, live 4 3 2 1
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {

Schedule never_drained(const ScheduleOptions& options, Schedule (*generator)(const ScheduleOptions&)) {
  ScheduleOptions window = options;
  window.microbatches *= options.window;
  return with_step_updates(generator(window), options.window);
}

Schedule pipedream(const ScheduleOptions& options) {
  return never_drained(options, one_forward_one_backward);
}

Schedule with_missing_updates(Schedule schedule, int updates) {
  const std::int32_t microbatches = schedule.step_microbatches();
  for (auto& row : schedule.actors)
    for (Action& action : row)
      if (action.kind == Kind::F) action.version = std::max(0, action.microbatch / microbatches - updates);
  return schedule;
}

}  // namespace penstock
