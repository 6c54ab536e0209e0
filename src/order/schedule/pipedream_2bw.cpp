// SPDX-License-Identifier: Apache-2.0
// PipeDream-2BW (Narayanan et al., 2006.09503): PipeDream of m micro-batches a step in which all of a step read one version, that before
// the last: W(b+1) = W(b) - rate * gradient(W(max(0, b-1))). So two versions are enough, and a step's gradient is of one set of parameters.
//
// Time and activations are PipeDream's. It needs m >= p-1: with fewer, actor 0 begins a step whose version is not made (the paper says p).
//
//   penstock schedule pipedream-2bw --actors 3 --microbatches 2 --window 3 --show
//   actor 0 | @0F0 @0F1 @0F2 .    .    .    .    B0------- @0F3 B1------- @1F4 B2------- @1F5 B3------- .    B4------- .    B5-------
//   actor 1 | .    @0F0 @0F1 .    .    B0------- @0F2 B1------- @0F3 B2------- @1F4 B3------- @1F5 B4------- .    B5-------
//   actor 2 | .    .    @0F0 B0------- @0F1 B1------- @0F2 B2------- @0F3 B3------- @1F4 B4------- @1F5 B5-------
//   time 24, bubble 25.0 %, live 3 2 1
#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/generators.h"

namespace penstock {

Schedule pipedream_2bw(const ScheduleOptions& options) {
  if (options.window > 1 && options.microbatches < options.actors - 1)
    throw Error(concat("pipedream-2bw: ", options.microbatches, " micro-batches a step are too few for ", options.actors, " actors"),
                {"actor 0 would begin a step before the update that it reads"},
                concat("use at least ", options.actors - 1, " micro-batches, or pipedream, which reads what is there"));
  return with_missing_updates(pipedream(options), 1);
}

}  // namespace penstock
