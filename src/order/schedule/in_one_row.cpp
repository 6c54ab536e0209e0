// SPDX-License-Identifier: Apache-2.0
#include "schedule/in_one_row.h"

#include <algorithm>
#include <set>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/drained.h"
#include "schedule/slices.h"
#include "schedule/work.h"

namespace penstock {

Schedule in_one_row(const Schedule& schedule, const StageShape& shape) {
  Schedule out = schedule;
  out.cells.clear();
  out.actors.assign(1, {});
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  std::vector<Position> order;
  const std::vector<std::int32_t> ran = walk(work, [&](Position p) { order.push_back(p); });
  for (std::size_t actor = 0; actor < ran.size(); ++actor)
    if (const std::vector<Action>& row = schedule.actors[actor]; ran[actor] < std::ssize(row))
      throw Error(concat("schedule ", schedule.name, ": ", text(row[ran[actor]]), " of actor ", actor, " never gets what it needs"),
                  {"stages feed each other in a way that the table is not for"});
  // A step that is drained on all actors is drained in the row.
  const std::vector<std::vector<FirstNeed>> needs = first_needs(schedule, shape);
  std::ranges::stable_sort(order, {}, [&](Position p) { return needs[p.actor][p.index].step; });
  for (const Position p : order)
    if (!is_transfer(work.at(p).kind)) out.actors[0].emplace_back(work.at(p)).fused_with_next = false;
  // A stage that several actors update is on one now, updated when the last of them would be.
  std::vector<Action>& row = out.actors[0];
  std::set<std::pair<std::int32_t, std::int32_t>> updated;  // stage, and the micro-batch that says the step
  std::ranges::reverse(row);
  std::erase_if(row, [&](const Action& action) {
    return action.kind == Kind::U && !updated.emplace(whole_stage(action, schedule), action.microbatch).second;
  });
  std::ranges::reverse(row);
  return out;
}

}  // namespace penstock
