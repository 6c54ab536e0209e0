// SPDX-License-Identifier: Apache-2.0
// DualPipe-V (DeepSeek-V3, 2412.19437; cut in half by Qi et al.): ZB-V's placement, and in the steady state the forward of one chunk is
// paired with the whole backward of the other, so that each hides the other's communication. Needs m >= 2p. Two orders: DeepSeek's own
// (github.com/deepseek-ai/DualPipe; torch.distributed.pipelining's ScheduleDualPipeV is the same), and that of JaxPP (2412.14374), which
// at the end splits fewer backwards and puts all weight gradients last.
//
// In chunk times (half of F and B), with F&B of a pair: bubble (p-1)(F&B+B-3W), exact where F=I=W and a pair is one piece (simulate
// --atomic-pairs); half of it where F and B of a pair run one after the other. JaxPP's is larger: by F/2 for p=2 and 3, 1.5F for p=4, 4.5F
// for p=8. Peak (2p+1)A/2; one copy of the parameters. --split-backward makes each B an I and a W, whose I goes out early: the same time
// without latency for DeepSeek's order, less for JaxPP's and wherever there is latency.
//
//   penstock schedule dualpipe-v --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1---- 3F2 0B0---- 3B2---- 3F3 .   0B1---- 3B3---- 0I2 0W2 0I3 0W3
//   actor 1 | .   1F0 2F0 1F1 2F1 1F2 2B0---- 2F2 1B0---- 1F3 2B1---- 2F3 1B1---- 2B2---- 1B2---- 2I3 1I3 2W3 1W3
//   time 25, bubble 4.0 %, live 5 5
//
//   penstock schedule dualpipe-v-jaxpp --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1---- 3F2 0B0---- 3B2---- 3F3 .   0B1---- 3B3---- 0B2---- .   0B3----
//   actor 1 | .   1F0 2F0 1F1 2F1 1F2 2B0---- 2F2 1B0---- 1F3 2B1---- 2F3 1B1---- 2B2---- 1B2---- 2I3 1B3---- 2W3
//   time 26, bubble 7.7 %, live 5 5
#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/folded.h"

namespace penstock {
namespace {

void pair(FoldedRow& row, int forward_chunk, int backward_chunk) {
  row.forward(forward_chunk);
  row.actions.back().fused_with_next = true;
  row.backward(backward_chunk);
}

// Fill and steady state, up to the last forward.
void forwards(FoldedRow& row, int p, int m, int r) {
  for (int i = 0; i < 2 * (p - 1 - r); ++i) row.forward(0);
  for (int i = 0; i <= r; ++i) {
    row.forward(0);
    row.forward(1);
  }
  for (int i = 0; i < p - 1 - r; ++i) {
    row.backward(1, true);
    row.weight();
    row.forward(1);
  }
  for (int i = 0; i <= m - 2 * p + r; ++i) {
    if (i == 0 && r == p - 1) {  // the first backward of all must not wait for a forward beside it
      row.forward(0);
      row.backward(1);
    } else {
      pair(row, 0, 1);
    }
    pair(row, 1, 0);
  }
  for (int i = 0; i < p - 1 - r; ++i) {
    row.backward(1);
    pair(row, 1, 0);
  }
}

// From the middle of the drain on every backward is split, and their W fill what follows.
void drain_deepseek(FoldedRow& row, int p, int r) {
  const int half = (r + 1) / 2;
  for (int i = 0; i <= r; ++i) {
    row.backward(1, i > half || (i == half && r % 2 == 1));
    row.backward(0, i >= half);
  }
  for (int i = 0; i < p - 1 - r; ++i) {
    row.weight();
    row.backward(0, true);
  }
  for (int i = 0; i <= r; ++i) row.weight();
}

// Odd actors split the second chunk's backwards, even ones the first chunk's; actor 0 none. All W at the end, by micro-batch.
void drain_jaxpp(FoldedRow& row, int p, int r) {
  const int half = (r + 1) / 2;
  for (int i = 0; i <= r; ++i) {
    row.backward(1, i >= half && r % 2 == 1);
    row.backward(0, i >= half && r % 2 == 0 && r != 0);
  }
  for (int i = 0; i < p - 1 - r; ++i) row.backward(0, r != 0);
  std::sort(row.weights.begin(), row.weights.end(),
            [](const Action& a, const Action& b) { return std::pair(a.microbatch, a.stage) < std::pair(b.microbatch, b.stage); });
  while (!row.weights.empty()) row.weight();
}

Schedule dual_pipe_v(std::string_view name, const ScheduleOptions& options, void (*drain)(FoldedRow&, int, int)) {
  require_two_chunks(name, options);
  const int p = options.actors, m = options.microbatches;
  if (m < 2 * p) {
    throw Error(concat(name, " needs at least as many micro-batches as stages: ", 2 * p, ", not ", m), {},
                concat(2 * p, " micro-batches, or zb-v, which takes any number"));
  }
  Schedule schedule;
  for (int r = 0; r < p; ++r) {
    FoldedRow row(p, r);
    forwards(row, p, m, r);
    drain(row, p, r);
    schedule.actors.push_back(std::move(row.actions));
  }
  return schedule;
}

}  // namespace

Schedule dual_pipe_v(const ScheduleOptions& options) {
  return dual_pipe_v("dualpipe-v", options, drain_deepseek);
}

Schedule dual_pipe_v_jaxpp(const ScheduleOptions& options) {
  return dual_pipe_v("dualpipe-v-jaxpp", options, drain_jaxpp);
}

}  // namespace penstock
