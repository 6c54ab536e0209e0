// 1F1B (PipeDream-Flush, Narayanan et al., 2006.09503; the early backward of DAPPLE, 2007.01045): actor i keeps at most p-i
// micro-batches, one for each stage from it to the end.
//
// Bubble (p-1)(F+B), as GPipe; peak (p-i)A on actor i. A transfer's latency is paid in every round: eager-1f1b hides it.
//
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {

Schedule alternating(const ScheduleOptions& options, const std::function<int(int actor)>& warm_up) {
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    const int ahead = std::min(warm_up(r), options.microbatches);
    for (int m = 0; m < ahead; ++m) row.push_back({r, Kind::F, m});
    for (int m = 0; m < options.microbatches; ++m) {
      row.push_back({r, Kind::B, m});
      if (m + ahead < options.microbatches) row.push_back({r, Kind::F, m + ahead});
    }
  }
  return schedule;
}

Schedule one_forward_one_backward(const ScheduleOptions& options) {
  return alternating(options, [&](int actor) { return options.actors - actor; });
}

}  // namespace penstock
