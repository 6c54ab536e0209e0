// SPDX-License-Identifier: Apache-2.0
// DualPipe (DeepSeek-V3, 2412.19437): micro-batches enter at both ends, the first half at actor 0, the others at actor p-1; stage s is
// on s for those and on p-1-s for these. Folded in the middle it is DualPipe-V: actors r and p-1-r both do what actor r of p/2 does
// there, the one's first chunk being the other's second in the other direction. Needs even p, even m >= 2p.
//
// Bubble (p/2-1)(F&B+B-3W), exact where F=I=W and a pair F&B is one piece (simulate --atomic-pairs); half of it where F and B of
// a pair run one after the other. Peak (p+1)A; two copies of the parameters.
//
//   penstock schedule dualpipe --actors 4 --microbatches 8 --show
//   actor 0 | 0F0 0F1 0F2 3F4 3I4 3W4 3F5 0F3 3B5---- 3F6 0B0---- 3B6---- 3F7 .   0B1---- 3B7---- 0I2 0W2 0I3 0W3
//   actor 1 | .   1F0 2F4 1F1 2F5 1F2 2B4---- 2F6 1B0---- 1F3 2B5---- 2F7 1B1---- 2B6---- 1B2---- 2I7 1I3 2W7 1W3
//   actor 2 | .   1F4 2F0 1F5 2F1 1F6 2B0---- 2F2 1B4---- 1F7 2B1---- 2F3 1B5---- 2B2---- 1B6---- 2I3 1I7 2W3 1W7
//   actor 3 | 0F4 0F5 0F6 3F0 3I0 3W0 3F1 0F7 3B1---- 3F2 0B4---- 3B2---- 3F3 .   0B5---- 3B3---- 0I6 0W6 0I7 0W7
//   time 25, bubble 4.0 %, live 5 5 5 5
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/folded.h"

namespace penstock {
namespace {

void check(const ScheduleOptions& options) {
  require_even_actors("dualpipe", options);
  const int p = options.actors, m = options.microbatches;
  if (m % 2 != 0) {
    throw Error(concat("dualpipe needs an even number of micro-batches, not ", m), {"each direction takes half of them"},
                concat(m + 1, " micro-batches"));
  }
  if (m < 2 * p) {
    throw Error(concat("dualpipe needs two micro-batches per actor: ", 2 * p, ", not ", m), {"each direction needs as many as stages"},
                concat(2 * p, " micro-batches"));
  }
}

}  // namespace

Schedule dual_pipe(const ScheduleOptions& options) {
  check(options);
  const int p = options.actors, half = options.microbatches / 2;
  const Schedule folded = dual_pipe_v({.actors = p / 2, .microbatches = half, .chunks = 2});
  Schedule schedule;
  for (int a = 0; a < p; ++a) {
    const bool lower = a >= p / 2;  // of the actors; its first chunk is of the direction that starts at actor p-1
    auto& row = schedule.actors.emplace_back(folded.actors[lower ? p - 1 - a : a]);
    for (Action& action : row) {
      const bool second = action.stage >= p / 2;
      if (second != lower) action.microbatch += half;
    }
  }
  return schedule;
}

}  // namespace penstock
