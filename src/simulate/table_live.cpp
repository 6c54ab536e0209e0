#include "simulate/table_live.h"

#include <algorithm>
#include <cmath>

namespace penstock {

std::vector<std::vector<ForeignEnd>> foreign_ends(const WorkIndex& work, const TableTime& time) {
  const auto& rows = work.schedule->actors;
  std::vector<std::vector<ForeignEnd>> out(rows.size());
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t i = 0; i < rows[a].size(); ++i) {
      const Action& action = rows[a][i];
      if (action.kind != Kind::W) continue;
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
        const std::size_t home = static_cast<std::size_t>(work.forward[work.unit(action.stage, m)].actor);
        if (home != a) out[home].push_back({time.end[a][i], action.stage});
      }
    }
  }
  for (auto& ends : out) std::sort(ends.begin(), ends.end(), [](const ForeignEnd& x, const ForeignEnd& y) { return x.time < y.time; });
  return out;
}

LiveSum::LiveSum(const TableCosts& costs) {
  constexpr double kParts = 0x1p35;  // so that kMostForwards of the largest amount fit
  double largest = 0;
  for (const StageCosts& stage : costs.stages) largest = std::max(largest, stage.live);
  for (const StageCosts& stage : costs.stages) parts_of_.push_back(largest > 0 ? std::llround(stage.live / largest * kParts) : 0);
  size_ = largest / kParts;
}

void fill_peaks(const WorkIndex& work, const TableCosts& costs, TableTime& time) {
  const std::size_t actors = work.schedule->actors.size();
  const std::vector<std::vector<ForeignEnd>> foreign = foreign_ends(work, time);
  time.peak_live.assign(actors, 0);
  time.peak_time.assign(actors, 0);
  const LiveSum empty(costs);
  for (std::size_t a = 0; a < actors; ++a) {
    LiveSum sum = empty;
    for_each_live_change(work, time, static_cast<std::int32_t>(a), foreign[a], [&](double when, std::int32_t stage, std::int32_t count) {
      const double live = sum.add(stage, count);
      if (live <= time.peak_live[a]) return;
      time.peak_live[a] = live;
      time.peak_time[a] = when;
    });
  }
}

}  // namespace penstock
