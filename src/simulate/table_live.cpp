#include "simulate/table_live.h"

#include <algorithm>

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

LiveSum::LiveSum(const TableCosts& costs) : costs_(costs), largest_(0) {
  for (const StageCosts& stage : costs.stages) largest_ = std::max(largest_, stage.live);
  if (largest_ == 0) largest_ = 1;
}

void fill_peaks(const WorkIndex& work, const TableCosts& costs, TableTime& time) {
  const std::size_t actors = work.schedule->actors.size();
  const std::vector<std::vector<ForeignEnd>> foreign = foreign_ends(work, time);
  time.peak_live.assign(actors, 0);
  time.peak_time.assign(actors, 0);
  for (std::size_t a = 0; a < actors; ++a) {
    LiveSum sum(costs);
    for_each_live_change(work, time, static_cast<std::int32_t>(a), foreign[a], [&](double when, std::int32_t stage, std::int32_t count) {
      const double live = sum.add(stage, count);
      if (live <= time.peak_live[a]) return;
      time.peak_live[a] = live;
      time.peak_time[a] = when;
    });
  }
}

}  // namespace penstock
