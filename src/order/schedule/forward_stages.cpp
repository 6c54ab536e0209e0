// SPDX-License-Identifier: Apache-2.0
#include "schedule/forward_stages.h"

#include "schedule/kinds.h"

namespace penstock {
namespace {

bool is_of_backward(Kind kind) {
  return (is_compute(kind) && kind != Kind::F) || is_residual(kind) || kind == Kind::U || kind == Kind::REDUCE_GRAD;
}

}  // namespace

bool is_relative_time(double time) {
  return time > 0 && time <= 1e6;
}

void add_forward_stages(Schedule& schedule, const std::vector<double>& times) {
  const auto count = static_cast<std::int32_t>(times.size());
  for (std::vector<Action>& row : schedule.actors)
    for (Action& action : row) action.stage += count * schedule.slices;
  schedule.forward_times.insert(schedule.forward_times.begin(), times.begin(), times.end());
  if (schedule.predecessors.empty()) return;
  std::vector<std::vector<std::int32_t>> all = chain(count).predecessors;
  for (std::vector<std::int32_t>& before : schedule.predecessors) {
    for (std::int32_t& stage : before) stage += count;
    if (before.empty()) before.push_back(count - 1);
    all.push_back(std::move(before));
  }
  schedule.predecessors = std::move(all);
}

Schedule without_absent_backwards(Schedule schedule, const StageShape& shape) {
  const auto is_absent = [&](const Action& action) {
    const bool is_known = action.stage >= 0 && action.stage < static_cast<std::int32_t>(shape.has_backward.size());
    return is_known && !shape.has_backward[action.stage] && is_of_backward(action.kind);
  };
  for (std::vector<Action>& row : schedule.actors) {
    for (std::size_t i = 0; i + 1 < row.size(); ++i)
      if (is_absent(row[i + 1])) row[i].fused_with_next = false;
    std::erase_if(row, is_absent);
  }
  return schedule;
}

Schedule forwards_of(Schedule schedule) {
  schedule.steps = 1;
  schedule.cells.clear();
  for (std::vector<Action>& row : schedule.actors) {
    std::erase_if(row, [](const Action& action) { return action.kind != Kind::F; });
    for (Action& action : row) action = {action.stage, Kind::F, action.microbatch, action.count};
  }
  return schedule;
}

}  // namespace penstock
