// SPDX-License-Identifier: Apache-2.0
#include "schedule/work.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/invariant.h"
#include "schedule/kinds.h"
#include "schedule/slices.h"

namespace penstock {
namespace {

void place(Position& slot, Position here, const std::function<void(Position, Position)>& on_double) {
  if (!slot) {
    slot = here;
  } else if (slot != here) {
    on_double(slot, here);
  }
}

// A stage, named by its first slice, and a step.
using StageStep = std::pair<std::int32_t, std::int32_t>;

std::int32_t step_microbatches(const WorkIndex& work) {
  return std::max(1, work.microbatches / work.schedule->steps);
}

StageStep stage_step(const WorkIndex& work, const Action& action) {
  return {first_slice(action.stage, *work.schedule), action.microbatch / step_microbatches(work)};
}

// By unit: the last W of each stage and step on each actor that has not its F.
std::map<std::size_t, StageStep> last_weights_elsewhere(const WorkIndex& work) {
  std::map<std::size_t, StageStep> out;
  for (std::int32_t a = 0; const std::vector<Action>& row : work.schedule->actors) {
    std::set<StageStep> seen;
    for (std::size_t i = row.size(); i-- > 0;) {
      if (row[i].kind != Kind::W) continue;
      const std::size_t unit = work.unit(row[i].stage, row[i].microbatch);
      if (work.forward[unit].actor == a || work.weight[unit] != Position{a, static_cast<std::int32_t>(i)}) continue;
      if (const StageStep of = stage_step(work, row[i]); seen.insert(of).second) out.emplace(unit, of);
    }
    ++a;
  }
  return out;
}

void find_updates(WorkIndex& work) {
  const std::map<std::size_t, StageStep> last = last_weights_elsewhere(work);
  if (last.empty()) return;
  std::map<StageStep, Position> updates;
  for_each_action(*work.schedule, [&](const Action& action, Position here) {
    if (action.kind == Kind::U && action.microbatch >= 0) updates.try_emplace(stage_step(work, action), here);
  });
  work.update.resize(work.forward.size());
  for (const auto& [unit, of] : last)
    if (const auto found = updates.find(of); found != updates.end()) work.update[unit] = found->second;
}

}  // namespace

std::vector<std::size_t> units_updated(const WorkIndex& work, const Action& update) {
  std::vector<std::size_t> out;
  if (work.update.empty()) return out;
  for (std::int32_t slice = 0; slice < work.schedule->slices; ++slice)
    for (std::int32_t m = update.microbatch - step_microbatches(work) + 1; m <= update.microbatch; ++m)
      if (m >= 0) out.push_back(work.unit(update.stage + slice, m));
  return out;
}

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
  for_each_action(schedule, [&](const Action& action, Position here) {
    work.has_sharding = work.has_sharding || is_sharding(action.kind);
    for (std::int32_t m = action.microbatch; m >= 0 && m < action.microbatch + action.count; ++m) {
      const std::size_t unit = work.unit(action.stage, m);
      if (action.kind == Kind::F) place(work.forward[unit], here, on_double);
      if (action.kind == Kind::B || action.kind == Kind::I) place(work.backward[unit], here, on_double);
      if (action.kind == Kind::B || action.kind == Kind::W) place(work.weight[unit], here, on_double);
      if (is_residual(action.kind)) place(where(action.kind)[unit], here, on_double);
      if (!is_transfer(action.kind)) continue;
      for (std::vector<Position>& slots : work.transfers) slots.resize(work.forward.size());
      place(work.transfers[transfer_place(action.kind)][unit], here, on_double);
    }
  });
  if (schedule.steps > 1) find_updates(work);
  return work;
}

WorkIndex index_work(const Schedule& schedule, const StageShape& shape, std::int32_t microbatches) {
  return index_work(schedule, shape, microbatches, [](Position, Position) { invariant(false, "a valid table does all work once"); });
}

}  // namespace penstock
