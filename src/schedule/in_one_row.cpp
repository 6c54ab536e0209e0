#include "schedule/in_one_row.h"

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/work.h"

namespace penstock {

Schedule in_one_row(const Schedule& schedule, const StageShape& shape) {
  Schedule out = schedule;
  out.cells.clear();
  out.actors.assign(1, {});
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  const std::vector<std::int32_t> ran = walk(work, [&](Position p) { out.actors[0].emplace_back(work.at(p)).fused_with_next = false; });
  for (std::size_t actor = 0; actor < ran.size(); ++actor)
    if (const std::vector<Action>& row = schedule.actors[actor]; ran[actor] < std::ssize(row))
      throw Error(concat("schedule ", schedule.name, ": ", text(row[ran[actor]]), " of actor ", actor, " never gets what it needs"),
                  {"stages feed each other in a way that the table is not for"});
  return out;
}

}  // namespace penstock
