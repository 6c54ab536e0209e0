// SPDX-License-Identifier: Apache-2.0
// Chimera (Li and Hoefler, 2107.06925): two opposite pipelines on the same actors, stage s on s for even micro-batches and on p-1-s
// for odd ones, so that one direction's forwards fill the other's idle start. Units of p micro-batches follow each other.
//
// Let e = (p-2)F. For every multiple of p micro-batches the bubble is e where B=F, the ratio (p-2)/(2m+p-2), and 2e where B=2F, the ratio
// (p-2)/(1.5m+p-2): units joined end to start lose nothing, although the paper doubles forwards or halves backwards to this end. What it
// needs is that forwards and backwards take turns (see folded.h); backwards first, a unit would cost e more. Peak (p/2+1)A on actors
// 0 and p-1, one A more per actor towards the middle, pA at most; later units bring pA everywhere. Two copies of the parameters.
//
//   penstock schedule chimera --actors 4 --microbatches 4 --show
//   actor 0 | 0F0 0F2 .   3F1 3B1---- 3F3 3B3---- .   0B0---- .   .   0B2----
//   actor 1 | .   1F0 2F1 1F2 2F3 .   2B1---- 1B0---- 2B3---- 1B2----
//   actor 2 | .   1F1 2F0 1F3 2F2 .   2B0---- 1B1---- 2B2---- 1B3----
//   actor 3 | 0F1 0F3 .   3F0 3B0---- 3F2 3B2---- .   0B1---- .   .   0B3----
//   time 16, bubble 25.0 %, live 3 4 4 3
#include "schedule/folded.h"

namespace penstock {

Schedule chimera(const ScheduleOptions& options) {
  require_even_actors("chimera", options);
  EngineWork work = folded_work(options.actors, 1, options.microbatches);
  add_opposite_way(work);
  return oldest_first(work, options.actors, 1);
}

}  // namespace penstock
