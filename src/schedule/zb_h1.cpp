// ZB-H1 (Qi et al., Zero Bubble, 2401.10241): the backward is split, input gradients go out at once, and weight gradients fill the
// idle time of the drain. Actor r runs p-r forwards, then for each micro-batch j: I(j), W(j-r), the next F; then the remaining W.
//
// Bubble (p-1)(F+I-W), a third of 1F1B's where F=I=W; peak pA on every actor, held until W.
//
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {

Schedule zero_bubble_h1(const ScheduleOptions& options) {
  const int m = options.microbatches;
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    const int ahead = std::min(options.actors - r, m), delay = std::min(r, m);
    for (int j = 0; j < ahead; ++j) row.push_back({r, Kind::F, j});
    for (int j = 0; j < m; ++j) {
      row.push_back({r, Kind::I, j});
      if (j >= delay) row.push_back({r, Kind::W, j - delay});
      if (j + ahead < m) row.push_back({r, Kind::F, j + ahead});
    }
    for (int j = m - delay; j < m; ++j) row.push_back({r, Kind::W, j});
  }
  return schedule;
}

}  // namespace penstock
