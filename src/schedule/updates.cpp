// An optimiser without a barrier (Qi et al., 2401.10241, section 4, of which this is the part without clipping): an actor that is done with
// a stage updates it while others still compute.
#include <algorithm>

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

}  // namespace penstock
