// SPDX-License-Identifier: Apache-2.0
// An optimiser without a barrier (Qi et al., 2401.10241, section 4, of which this is the part without clipping): an actor that is done with
// a stage updates it while others still compute.
#include <map>

#include "schedule/generators.h"
#include "schedule/kinds.h"
#include "schedule/slices.h"

namespace penstock {

Schedule with_updates(Schedule schedule) {
  schedule.cells.clear();
  const std::size_t stages = schedule.whole_stages();
  for (std::vector<Action>& row : schedule.actors) {
    std::erase_if(row, [](const Action& action) { return action.kind == Kind::U; });
    if (!row.empty()) row.back().fused_with_next = false;  // nothing follows it
    std::vector<bool> updated(stages, false);
    for (std::size_t i = row.size(); i-- > 0;) {
      const std::int32_t stage = whole_stage(row[i], schedule);
      const bool works = is_compute(row[i].kind) || is_send(row[i].kind) || row[i].kind == Kind::REDUCE_GRAD;
      if (!works || updated[stage]) continue;
      updated[stage] = true;
      if (row[i].kind == Kind::F || row[i].kind == Kind::SEND_F) continue;
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
    std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> last;  // by stage and step: the last gradient, or the fused pair's end
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].kind != Kind::B && row[i].kind != Kind::W) continue;
      std::size_t& end = last[{whole_stage(row[i], schedule), row[i].microbatch / of_step}] = i;
      while (row[end].fused_with_next) ++end;
    }
    std::map<std::size_t, std::vector<Action>> behind;
    for (const auto& [of, end] : last)
      behind[end].push_back({number_of({of.first}, schedule.slices, schedule.blocks), Kind::U, (of.second + 1) * of_step - 1});
    std::vector<Action> updating;
    for (std::size_t i = 0; i < row.size(); ++i) {
      updating.push_back(row[i]);
      if (const auto updates = behind.find(i); updates != behind.end())
        updating.insert(updating.end(), updates->second.begin(), updates->second.end());
    }
    row = std::move(updating);
  }
  return schedule;
}

Schedule repeated(Schedule step, int steps) {
  const std::int32_t microbatches = step.microbatches();
  for (std::vector<Action>& row : step.actors) {
    const std::vector<Action> once = row;
    for (std::int32_t k = 1; k < steps; ++k)
      for (Action action : once) {
        if (action.microbatch >= 0) action.microbatch += k * microbatches;
        row.push_back(action);
      }
  }
  return with_step_updates(std::move(step), steps);
}

}  // namespace penstock
