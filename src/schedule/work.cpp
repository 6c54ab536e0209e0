#include "schedule/work.h"

#include "base/invariant.h"

namespace penstock {
namespace {

void place(Position& slot, Position here, const std::function<void(Position, Position)>& on_double) {
  if (!slot) {
    slot = here;
  } else if (slot != here) {
    on_double(slot, here);
  }
}

}  // namespace

WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches,
                     const std::function<void(Position, Position)>& on_double) {
  const std::size_t stages = shape.predecessors.size();
  WorkIndex work;
  work.schedule = &schedule;
  work.shape = &shape;
  work.microbatches = microbatches;
  work.backward_successors.resize(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::int32_t before : shape.predecessors[s]) {
      invariant(before >= 0 && before < static_cast<std::int32_t>(s), "stages are numbered in topological order");
      if (shape.has_backward[s]) work.backward_successors[static_cast<std::size_t>(before)].push_back(static_cast<std::int32_t>(s));
    }
  }
  work.forward.resize(stages * static_cast<std::size_t>(microbatches));
  work.backward.resize(work.forward.size());
  work.weight.resize(work.forward.size());
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    for (std::size_t i = 0; i < schedule.actors[a].size(); ++i) {
      const Action& action = schedule.actors[a][i];
      const Position here{static_cast<std::int32_t>(a), static_cast<std::int32_t>(i)};
      for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m) {
        const std::size_t unit = work.unit(action.stage, m);
        if (action.kind == Kind::F) place(work.forward[unit], here, on_double);
        if (action.kind == Kind::B || action.kind == Kind::I) place(work.backward[unit], here, on_double);
        if (action.kind == Kind::B || action.kind == Kind::W) place(work.weight[unit], here, on_double);
      }
    }
  }
  return work;
}

WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches) {
  return index_work(schedule, shape, microbatches, [](Position, Position) { invariant(false, "a valid table does all work once"); });
}

Position unmet_need(const WorkIndex& work, const Action& action, const std::vector<std::int32_t>& done) {
  Position unmet;
  for_each_need(work, action, [&](Position need) {
    if (!unmet && done[static_cast<std::size_t>(need.actor)] <= need.index) unmet = need;
  });
  return unmet;
}

std::vector<std::int32_t> walk(const WorkIndex& work, const std::function<void(Position)>& visit) {
  const auto& rows = work.schedule->actors;
  std::vector<std::size_t> offset(rows.size() + 1, 0);  // of each row in first_waiter
  for (std::size_t a = 0; a < rows.size(); ++a) offset[a + 1] = offset[a] + rows[a].size();
  // The actors that wait for an action, as a list: a blocked actor waits for exactly one.
  std::vector<std::int32_t> first_waiter(offset.back(), -1), next_waiter(rows.size(), -1);
  std::vector<std::int32_t> done(rows.size(), 0), awake;
  for (std::size_t a = rows.size(); a-- > 0;) awake.push_back(static_cast<std::int32_t>(a));

  while (!awake.empty()) {
    const std::int32_t actor = awake.back();
    awake.pop_back();
    const std::size_t a = static_cast<std::size_t>(actor);
    for (std::int32_t& i = done[a]; i < static_cast<std::int32_t>(rows[a].size());) {
      if (const Position need = unmet_need(work, rows[a][static_cast<std::size_t>(i)], done)) {
        std::int32_t& first = first_waiter[offset[static_cast<std::size_t>(need.actor)] + static_cast<std::size_t>(need.index)];
        next_waiter[a] = first;
        first = actor;
        break;
      }
      visit({actor, i});
      std::int32_t waiter = first_waiter[offset[a] + static_cast<std::size_t>(i++)];
      for (; waiter >= 0; waiter = next_waiter[static_cast<std::size_t>(waiter)]) awake.push_back(waiter);
    }
  }
  return done;
}

}  // namespace penstock
