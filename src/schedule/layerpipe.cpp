// LayerPipe's delays (Unnikrishnan and Parhi, 2108.06629): where forwards and backwards have processors of their own, one behind the other,
// stage i has its backward 2(p-1-i) steps behind its forward, twice PipeDream's, and what a step reads is as many updates late.
//
// Here an actor has both of its stage, so nothing is faster than in pipedream: it is the order of eager-1f1b, never drained, which waits
// for no transfer where links are slow, for twice the activations and versions. The paper's balance, in which the pieces of a backward lie
// on processors of their own, is penstock batch layers; in a table for one step only W may run away from its F.
//
//   penstock schedule layerpipe --actors 3 --microbatches 1 --window 7 --show
//   actor 0 | F0 F1 F2 F3 F4 .  .  B0--- F5 B1--- F6 B2--- .  B3--- .  B4--- .  B5--- .  B6---
//   actor 1 | .  F0 F1 F2 .  B0--- F3 B1--- F4 B2--- F5 B3--- F6 B4--- .  B5--- .  B6---
//   actor 2 | .  .  F0 B0--- F1 B1--- F2 B2--- F3 B3--- F4 B4--- F5 B5--- F6 B6---
//   time 27, bubble 22.2 %, live 5 3 1
#include "schedule/generators.h"

namespace penstock {

Schedule layerpipe(const ScheduleOptions& options) {
  return never_drained(options, eager_one_forward_one_backward);
}

}  // namespace penstock
