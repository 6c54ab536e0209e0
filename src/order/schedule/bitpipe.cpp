// SPDX-License-Identifier: Apache-2.0
// BitPipe (Wu et al., 2410.19367): Chimera with V placements: even micro-batches go down the actors and back up (actor r has stages r and
// 2p-1-r), odd ones up and back down (p-1-r and p+r), both through chunks of half the size. Units of p micro-batches follow each other.
//
// Half of Chimera's bubble. Let e = (p-2)F/2. Where B=F it is e for every multiple of p micro-batches: the ratio (p-2)/(4m+p-2). Where
// B=2F it is 2e, the ratio (p-2)/(3m+p-2); from the second unit on (p-6)F/2 more if p is above 6, and no more for any further unit. Peak pA
// in the middle and A/2 less per actor towards both ends, for one unit; pA at most. Two copies of the parameters.
//
//   penstock schedule bitpipe --actors 4 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F2 .   3F1 4F1 3F3 4F3 7F0 7B0---- 7F2 7B2---- .   4B1---- 3B1---- 4B3---- 3B3---- 0B0---- .   .   0B2----
//   actor 1 | .   1F0 2F1 1F2 2F3 5F1 6F0 5F3 6F2 .   6B0---- 5B1---- 6B2---- 5B3---- 2B1---- 1B0---- 2B3---- 1B2----
//   actor 2 | .   1F1 2F0 1F3 2F2 5F0 6F1 5F2 6F3 .   6B1---- 5B0---- 6B3---- 5B2---- 2B0---- 1B1---- 2B2---- 1B3----
//   actor 3 | 0F1 0F3 .   3F0 4F0 3F2 4F2 7F1 7B1---- 7F3 7B3---- .   4B0---- 3B0---- 4B2---- 3B2---- 0B1---- .   .   0B3----
//   time 28, bubble 14.3 %, live 7 8 8 7
#include "schedule/folded.h"

namespace penstock {

Schedule bitpipe(const ScheduleOptions& options) {
  require_even_actors("bitpipe", options);
  require_two_chunks("bitpipe", options);
  const int p = options.actors;
  return in_whole_units(options, p, [=](int microbatches) {
    EngineWork work = folded_work(p, 2, microbatches);
    add_opposite_way(work);
    return oldest_first(work, 2 * p, 2);
  });
}

}  // namespace penstock
