// SPDX-License-Identifier: Apache-2.0
#include "schedule/host_copies.h"

#include <cstddef>
#include <utility>

namespace penstock {
namespace {

Action copy_of(Action action, Kind kind) {
  action.kind = kind;
  return action;
}

bool is_forward_of(const Action& forward, const Action& backward) {
  return forward.kind == Kind::F && forward.stage == backward.stage && forward.microbatch == backward.microbatch;
}

// Whether the RELOAD of a backward goes beside the action ahead of it: that is not its own forward, nor what follows another forward, whose
// residuals are leaving meanwhile.
bool is_early(const std::vector<Action>& row, std::size_t backward) {
  return backward >= 2 && !is_forward_of(row[backward - 1], row[backward]) && row[backward - 2].kind != Kind::F;
}

}  // namespace

Schedule with_host_copies(Schedule schedule, const std::vector<bool>& stages) {
  schedule.cells.clear();
  for (std::vector<Action>& row : schedule.actors) {
    const auto is_backward = [&](std::size_t i) {
      return i < row.size() && (row[i].kind == Kind::B || row[i].kind == Kind::I) && stages[static_cast<std::size_t>(row[i].stage)];
    };
    std::vector<Action> out;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (is_backward(i) && !is_early(row, i)) out.push_back(copy_of(row[i], Kind::RELOAD));
      if (is_backward(i + 1) && is_early(row, i + 1)) out.push_back(copy_of(row[i + 1], Kind::RELOAD));
      out.push_back(row[i]);
      if (row[i].kind == Kind::F && stages[static_cast<std::size_t>(row[i].stage)]) out.push_back(copy_of(row[i], Kind::OFFLOAD));
    }
    row = std::move(out);
  }
  return schedule;
}

}  // namespace penstock
