// SPDX-License-Identifier: Apache-2.0
// HetPipe (Park et al., 2005.14038): one virtual worker, which has N mini-batches in flight. Mini-batch b reads, in all stages, the
// parameters with the worker's updates up to b-N: its forwards miss the N-1 updates of those before it, whatever the stage.
//
// Here N is as small as keeps the pipeline of at most f micro-batches in flight busy: 1 + ceil((f-1)/m), with f = p unless --in-flight says
// otherwise. So it is PipeDream with vertical sync, and 2BW where m >= p-1. Time and activations are PipeDream's. The paper's workers push
// their updates once in N mini-batches, as they do with pipeline.distance (lower/waves.cpp); else they sum gradients at each update over
// the axis `data`, so they miss no more of each other than of their own.
//
//   penstock schedule hetpipe --actors 3 --microbatches 1 --window 4 --show
//   actor 0 | @0F0 @0F1 @0F2 .    .    .    .    B0------- @1F3 B1------- .    B2------- .    B3-------
//   actor 1 | .    @0F0 @0F1 .    .    B0------- @0F2 B1------- @1F3 B2------- .    B3-------
//   actor 2 | .    .    @0F0 B0------- @0F1 B1------- @0F2 B2------- @1F3 B3-------
//   time 18, bubble 33.3 %, live 3 2 1
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {

Schedule hetpipe(const ScheduleOptions& options) {
  const int in_flight = options.in_flight > 0 ? std::min(options.in_flight, options.actors) : options.actors;
  const int missing = (in_flight - 1 + options.microbatches - 1) / options.microbatches;
  return with_missing_updates(pipedream(options), missing);
}

}  // namespace penstock
