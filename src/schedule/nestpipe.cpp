// 1F1B for a window of steps, each drained before the next begins, as without a window: all read the newest version. What the window is for
// is that the next step's data are there: NestPipe (2604.06956) looks its rows of embeddings up while this step computes
// (lower/lookups_ahead.h).
//
//   penstock schedule nestpipe --actors 2 --microbatches 2 --window 2 --show
//   actor 0 | F0 F1 .  .  B0--- .  B1--- F2 F3 .  .  B2--- .  B3---
//   actor 1 | .  F0 B0--- F1 B1--- .  .  .  F2 B2--- F3 B3---
//   time 18, bubble 33.3 %, live 2 1
#include "schedule/generators.h"

namespace penstock {

Schedule nestpipe(const ScheduleOptions& options) {
  return repeated(one_forward_one_backward(options), options.window);
}

}  // namespace penstock
