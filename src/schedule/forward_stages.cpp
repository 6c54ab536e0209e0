#include "schedule/forward_stages.h"

#include "schedule/kinds.h"

namespace penstock {
namespace {

bool is_of_backward(Kind kind) {
  return (is_compute(kind) && kind != Kind::F) || is_residual(kind) || kind == Kind::U || kind == Kind::REDUCE_GRAD;
}

}  // namespace

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

}  // namespace penstock
