// SPDX-License-Identifier: Apache-2.0
#include "schedule/drained.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/kinds.h"
#include "schedule/versions.h"
#include "schedule/work.h"

namespace penstock {

std::vector<std::vector<FirstNeed>> first_needs(const Schedule& schedule, const StageShape& shape) {
  const std::int32_t microbatches = std::max(1, schedule.step_microbatches());
  std::vector<std::vector<FirstNeed>> out;
  for (std::int32_t actor = 0; const std::vector<Action>& row : schedule.actors) {
    std::vector<FirstNeed>& needs = out.emplace_back();
    for (std::int32_t i = 0; const Action& action : row) needs.push_back({action.microbatch / microbatches, {actor, i++}});
    ++actor;
  }
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  std::vector<Position> order;
  walk(work, [&](Position p) { order.push_back(p); });
  const auto at = [&](Position p) -> FirstNeed& { return out[p.actor][p.index]; };
  const auto pass_on = [&](Position need, Position of) {
    if (at(of).step < at(need).step) at(need) = at(of);
  };
  for (auto p = order.rbegin(); p != order.rend(); ++p) {
    for_each_need(work, work.at(*p), [&](Position need) { pass_on(need, *p); });
    if (p->index > 0) pass_on({p->actor, p->index - 1}, *p);
  }
  return out;
}

void check_drained(const Schedule& schedule, const StageShape& shape, const std::string& why) {
  const std::int32_t microbatches = std::max(1, schedule.step_microbatches());
  const std::vector<std::vector<ReadVersion>> versions = read_versions(schedule);
  const std::vector<std::vector<FirstNeed>> needs = first_needs(schedule, shape);
  const std::string hint = concat(
      "neither clip (--set clip=0) nor read a parameter on several actors (--set tied=0), or let each step end before the next begins, ",
      "as any schedule of one step does: --schedule 1f1b --window ", schedule.steps);
  for_each_action(schedule, [&](const Action& action, Position p) {
    if (!reads_parameters(action.kind) || !shape.has_backward[action.stage] || !shape.has_parameters[action.stage]) return;
    const std::int32_t step = action.microbatch / microbatches;
    const ReadVersion read = versions[p.actor][p.index];
    if (read.version != step || read.ahead > 0)
      throw Error(concat(named(schedule, p), " reads version ", read.version, " of its stage in step ", step), {why}, hint);
    if (const FirstNeed& need = needs[p.actor][p.index]; need.step < step)
      throw Error(
          concat(named(schedule, p), " reads what step ", need.step, " updates, and ", named(schedule, need.by), " of that step needs it"),
          {why}, hint);
  });
}

}  // namespace penstock
