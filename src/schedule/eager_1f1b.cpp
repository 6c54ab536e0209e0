// 1F1B with a deeper warm-up, K_i = 2(p-i)-1 (DAPPLE's second policy, 2007.01045, for slow links): a micro-batch is always on its
// way in each direction, so that the steady state waits for no transfer.
//
// Bubble (p-1)(F+B) plus 2(p-1) latencies of fill and drain; peak (2(p-i)-1)A on actor i.
//
#include "schedule/generators.h"

namespace penstock {

Schedule eager_one_forward_one_backward(const ScheduleOptions& options) {
  return alternating(options, [&](int actor) { return 2 * (options.actors - actor) - 1; });
}

}  // namespace penstock
