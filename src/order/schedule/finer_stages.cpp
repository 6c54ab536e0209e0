// SPDX-License-Identifier: Apache-2.0
#include "schedule/finer_stages.h"

#include <algorithm>
#include <numeric>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"

namespace penstock {
namespace {

bool goes_back(Kind kind) {
  return kind == Kind::B || kind == Kind::I || kind == Kind::W || kind == Kind::U || kind == Kind::REDUCE_GRAD;
}

void check_sizes(const Schedule& schedule, const std::vector<int>& sizes) {
  if (schedule.slices > 1 || !schedule.predecessors.empty() || !schedule.forward_times.empty())
    throw Error(concat("schedule ", schedule.name, " has slices, stages that are no chain or stages that are not trained"),
                {"only a chain of whole stages that train is cut finer"}, "use a schedule without them");
  if (std::ssize(sizes) == schedule.stages() && std::ranges::all_of(sizes, [](int size) { return size >= 1; })) return;
  throw Error(concat("schedule ", schedule.name, " has ", counted(schedule.stages(), "stage"), ", and their sizes are [",
                     join(sizes, ", ", [](int size) { return std::to_string(size); }), "]"),
              {}, "give each stage of the table a size of 1 or more");
}

}  // namespace

Schedule with_finer_stages(Schedule schedule, const std::vector<int>& sizes) {
  check_sizes(schedule, sizes);
  std::vector<int> first(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), first.begin(), 0);
  schedule.cells.clear();
  for (std::vector<Action>& row : schedule.actors) {
    std::vector<Action> finer;
    for (Action action : row) {
      const int begin = first[action.stage], size = sizes[action.stage];
      action.fused_with_next = false;
      for (int i = 0; i < size; ++i) {
        action.stage = begin + (goes_back(action.kind) ? size - 1 - i : i);
        finer.push_back(action);
      }
    }
    row = std::move(finer);
  }
  return schedule;
}

}  // namespace penstock
