// SPDX-License-Identifier: Apache-2.0
// Hanayo (Liu et al., 2308.15762): the V repeated w times, so that each actor has 2w chunks and a micro-batch passes the actors in w waves:
// Chimera's short way back from the last stage without a second copy of the parameters. Units of p micro-batches follow each other.
//
// No formula is published that we know; read off the tables, with e = (p-1)F/w: where B=F the bubble is e for every multiple of p
// micro-batches; where B=2F it is 2e, and with two waves or more (p-3)F/w more from the second unit on (p above 3), no more for any further
// unit. So it is below Chimera's 2(p-2)F, as is claimed, from two waves on (p >= 4) and above it for one. Peak pA on the last actor and
// A/(2w) less per actor before it, for one unit; pA at most.
//
//   penstock schedule hanayo --actors 2 --microbatches 2 --chunks 4 --show
//   actor 0 | 0F0 0F1 .   3F0 4F0 3F1 4F1 7F0 7B0---- 7F1 7B1---- .   4B0---- 3B0---- 4B1---- 3B1---- 0B0---- .   .   0B1----
//   actor 1 | .   1F0 2F0 1F1 2F1 5F0 6F0 5F1 6F1 .   6B0---- 5B0---- 6B1---- 5B1---- 2B0---- 1B0---- 2B1---- 1B1----
//   time 28, bubble 14.3 %, live 7 8
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/folded.h"

namespace penstock {

Schedule hanayo(const ScheduleOptions& options) {
  const int p = options.actors, chunks = options.chunks;
  if (chunks % 2 != 0) {
    throw Error(concat("hanayo needs an even number of chunks, not ", chunks), {"each of its waves goes down the actors and back up"},
                concat(chunks > 1 ? concat(chunks - 1, " or ") : std::string(), chunks + 1, " chunks"));
  }
  return in_whole_units(
      options, p, [=](int microbatches) { return oldest_first(folded_work(p, chunks, microbatches), p * chunks, chunks > 2 ? 2 : 1); });
}

}  // namespace penstock
