// SPDX-License-Identifier: Apache-2.0
// Interleaved zero bubble: interleaved-1f1b with the backward split as ZB-H1's (Qi et al., 2401.10241; torch.distributed.pipelining's
// InterleavedZeroBubble). Actor r runs p-1-r+(v-1)G chunk-forwards, then a forward, an input gradient and, from the r-th round on, the
// oldest weight gradient in turn; the drain goes on without forwards.
//
// Bubble (p-1)(F+I-W)/v where G >= p divides m, two thirds less than interleaved-1f1b's where F=I=W.
//
//   penstock schedule interleaved-zb --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 2F0 2F1 .   2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 0I3 0W3
//   actor 1 | .   1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 1W2 1W3
//   time 25, bubble 4.0 %, live 4 4
#include "schedule/generators.h"

namespace penstock {

Schedule interleaved_zero_bubble(const ScheduleOptions& options) {
  return interleaved(options, true);
}

}  // namespace penstock
