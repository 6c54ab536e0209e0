// An optimiser without a barrier (Qi et al., 2401.10241, section 4, of which this is the part without clipping): an actor that is done with
// a stage updates it while others still compute.
#include <algorithm>
#include <map>

#include "schedule/kinds.h"

namespace penstock {

Schedule with_updates(Schedule schedule) {
  schedule.cells.clear();
  const std::size_t stages = schedule.whole_stages();
  for (std::vector<Action>& row : schedule.actors) {
    std::erase_if(row, [](const Action& action) { return action.kind == Kind::U; });
    if (!row.empty()) row.back().fused_with_next = false;  // nothing follows it
    std::vector<bool> updated(stages, false);
    for (std::size_t i = row.size(); i-- > 0;) {
      const std::int32_t stage = part_of(row[i].stage, schedule.slices, schedule.blocks).stage;
      const bool works = is_compute(row[i].kind) || row[i].kind == Kind::REDUCE_GRAD;
      if (!works || updated[stage]) continue;
      updated[stage] = true;
      if (row[i].kind == Kind::F) continue;
      std::size_t last = i;  // of the fused pair that the action may be in, which stays together
      while (row[last].fused_with_next) ++last;
      row.insert(row.begin() + static_cast<std::ptrdiff_t>(last) + 1,
                 Action{number_of({stage}, schedule.slices, schedule.blocks), Kind::U});
    }
  }
  return schedule;
}

Schedule with_step_updates(Schedule schedule, int steps) {
  schedule.cells.clear();
  schedule.steps = steps;
  const std::int32_t of_step = schedule.microbatches() / steps;
  for (std::vector<Action>& row : schedule.actors) {
    std::vector<Action> updating;
    std::map<std::int32_t, std::int32_t> summed;  // micro-batches, by stage
    for (const Action& action : row) {
      updating.push_back(action);
      const bool sums = action.kind == Kind::B || action.kind == Kind::W;
      if (sums && ++summed[action.stage] % of_step == 0) updating.push_back({action.stage, Kind::U, summed[action.stage] - 1});
    }
    row = std::move(updating);
  }
  return schedule;
}

}  // namespace penstock
