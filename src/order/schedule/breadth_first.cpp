// SPDX-License-Identifier: Apache-2.0
// Breadth-first pipelining (Lamy-Poirier, 2211.05953): each chunk runs all its micro-batches before the next chunk starts, and back in
// the reverse order, so that a chunk's parameters and gradients are communicated once per direction.
//
// Bubble (p-1)(F+B)/v; peak mA on every actor; one copy of the parameters. Needs m >= p for this bubble.
//
//   penstock schedule breadth-first --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 0F2 0F3 2F0 2F1 2F2 2F3 .   .   .   2B3---- 2B2---- 2B1---- 2B0---- 0B3---- 0B2---- 0B1---- 0B0----
//   actor 1 | .   1F0 1F1 1F2 1F3 3F0 3F1 3F2 3F3 3B3---- 3B2---- 3B1---- 3B0---- 1B3---- 1B2---- 1B1---- 1B0----
//   time 27, bubble 11.1 %, live 8 8
#include "schedule/generators.h"

namespace penstock {

Schedule breadth_first(const ScheduleOptions& options) {
  return chunk_by_chunk(options, true);
}

}  // namespace penstock
