// SPDX-License-Identifier: Apache-2.0
// ZB-V (Qi et al., Pipeline Parallelism with Controllable Memory, 2405.15362): stages go down the actors and come back, actor r has
// r and 2p-1-r, so that the last stage's backward starts where the first forward did, and each F, I and W of a chunk fills the gaps of
// the other's. The order is that of torch.distributed.pipelining's ScheduleZBVZeroBubble.
//
// Bubble 0 in each actor's own span where F=I=W and m >= 2p-1; the last actor starts (p-1)F/2 late, so that over the whole step it is
// (p-1)F/2, or 2p-1-m where that is more. Peak pA on every actor; one copy of the parameters; twice 1F1B's transfers (the turn
// needs none).
//
//   penstock schedule zb-v --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 0I3 0W3
//   actor 1 | .   1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 2W3 1W3
//   time 25, bubble 4.0 %, live 4 4
#include <algorithm>

#include "schedule/folded.h"

namespace penstock {
namespace {

void backward(FoldedRow& row, int chunk) {
  row.backward(chunk, true);
  row.weight(chunk);
}

void warm_up(FoldedRow& row, int p, int r) {
  for (int i = 0; i < 2 * (p - r) - 1; ++i) row.forward(0);
  for (int i = 0; i < r; ++i) {
    row.forward(1);
    row.forward(0);
  }
  for (int i = 0; i < p - r; ++i) {
    row.forward(1);
    backward(row, 1);
  }
}

void steady(FoldedRow& row, int m) {
  while (row.forwards(1) < m) {
    if (row.forwards(0) < m) row.forward(0);
    backward(row, 0);
    row.forward(1);
    backward(row, 1);
  }
}

void cool_down(FoldedRow& row, int p, int r) {
  for (int i = 0; i < r; ++i) {
    row.backward(0, true);
    row.backward(1, true);
  }
  for (int i = 0; i < p - r; ++i) {
    backward(row, 0);
  }
  for (int chunk : {1, 0}) {
    while (row.weight(chunk)) continue;
  }
}

}  // namespace

Schedule zero_bubble_v(const ScheduleOptions& options) {
  require_two_chunks("zb-v", options);
  const int p = options.actors, m = std::max(options.microbatches, 2 * p - 1);  // the warm-up's forwards
  Schedule schedule;
  for (int r = 0; r < p; ++r) {
    FoldedRow row(p, r);
    warm_up(row, p, r);
    steady(row, m);
    cool_down(row, p, r);
    std::erase_if(row.actions, [&](const Action& action) { return action.microbatch >= options.microbatches; });
    schedule.actors.push_back(std::move(row.actions));
  }
  return schedule;
}

}  // namespace penstock
