#include "schedule/in_one_row.h"

#include "schedule/work.h"

namespace penstock {

Schedule in_one_row(const Schedule& schedule, const StageShape& shape) {
  Schedule out = schedule;
  out.cells.clear();
  out.actors.assign(1, {});
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  walk(work, [&](Position p) { out.actors[0].emplace_back(work.at(p)).fused_with_next = false; });
  return out;
}

}  // namespace penstock
