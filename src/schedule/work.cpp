#include "schedule/work.h"

#include "base/invariant.h"
#include "schedule/kinds.h"

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
  work.successors.resize(stages);
  work.backward_successors.resize(stages);
  for (std::size_t s = 0; s < stages; ++s) {
    for (std::int32_t before : shape.predecessors[s]) {
      invariant(before >= 0 && before < static_cast<std::int32_t>(s), "stages are numbered in topological order");
      work.successors[before].push_back(static_cast<std::int32_t>(s));
      if (shape.has_backward[s]) work.backward_successors[before].push_back(static_cast<std::int32_t>(s));
    }
  }
  work.forward.resize(stages * static_cast<std::size_t>(microbatches));
  work.backward.resize(work.forward.size());
  work.weight.resize(work.forward.size());
  const auto where = [&](Kind kind) -> std::vector<Position>& {
    std::vector<Position>& slots = kind == Kind::R ? work.recompute : kind == Kind::OFFLOAD ? work.offload : work.reload;
    if (slots.empty()) slots.resize(work.forward.size());
    return slots;
  };
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    for (std::size_t i = 0; i < schedule.actors[a].size(); ++i) {
      const Action& action = schedule.actors[a][i];
      const Position here{static_cast<std::int32_t>(a), static_cast<std::int32_t>(i)};
      work.has_sharding = work.has_sharding || is_sharding(action.kind);
      for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m) {
        const std::size_t unit = work.unit(action.stage, m);
        if (action.kind == Kind::F) place(work.forward[unit], here, on_double);
        if (action.kind == Kind::B || action.kind == Kind::I) place(work.backward[unit], here, on_double);
        if (action.kind == Kind::B || action.kind == Kind::W) place(work.weight[unit], here, on_double);
        if (is_residual(action.kind)) place(where(action.kind)[unit], here, on_double);
      }
    }
  }
  return work;
}

WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches) {
  return index_work(schedule, shape, microbatches, [](Position, Position) { invariant(false, "a valid table does all work once"); });
}

}  // namespace penstock
