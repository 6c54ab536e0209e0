// How many activations live on each actor of a timed table.
#pragma once

#include <vector>

#include "simulate/table.h"

namespace penstock {

// A W that runs on another actor than its F: when it ends there, one micro-batch of `stage` ends here.
struct ForeignEnd {
  double time = 0;
  std::int32_t stage = 0;
};
// Of each actor, in time.
std::vector<std::vector<ForeignEnd>> foreign_ends(const WorkIndex& work, const TableTime& time);

// Calls change(time, stage, count) for all micro-batches that begin (count > 0) and end to live on the actor, in time; what ends at a time
// comes before what begins then. `foreign`: the actor's.
template <class Change>
void for_each_live_change(const WorkIndex& work, const TableTime& time, std::int32_t actor, const std::vector<ForeignEnd>& foreign,
                          Change&& change) {
  const std::size_t a = static_cast<std::size_t>(actor);
  const std::vector<Action>& row = work.schedule->actors[a];
  auto next = foreign.begin();
  const auto foreign_until = [&](double end) {
    for (; next != foreign.end() && next->time <= end; ++next) change(next->time, next->stage, -1);
  };
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Action& action = row[i];
    if (action.kind == Kind::F && work.shape->has_backward[static_cast<std::size_t>(action.stage)]) {
      foreign_until(time.start[a][i]);
      change(time.start[a][i], action.stage, action.count);
    }
    std::int32_t ended = action.kind == Kind::B ? action.count : 0;
    if (action.kind == Kind::I || action.kind == Kind::W) {
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
        const std::size_t unit = work.unit(action.stage, m);
        ended += action.kind == Kind::I ? !work.weight[unit] : work.forward[unit].actor == actor;
      }
    }
    if (ended == 0) continue;
    foreign_until(time.end[a][i]);
    change(time.end[a][i], action.stage, -ended);
  }
  foreign_until(time.makespan);
}

// Sums the amounts of for_each_live_change, in whole parts of the largest amount: what has ended leaves no rounding behind.
class LiveSum {
 public:
  explicit LiveSum(const TableCosts& costs);
  // What lives now.
  double add(std::int32_t stage, std::int32_t count) {
    parts_ += parts_of_[static_cast<std::size_t>(stage)] * count;
    return static_cast<double>(parts_) * size_;
  }

 private:
  std::vector<std::int64_t> parts_of_;  // each stage's micro-batch
  std::int64_t parts_ = 0;
  double size_;  // of a part
};

// TableTime::peak_live and peak_time of what is known otherwise.
void fill_peaks(const WorkIndex& work, const TableCosts& costs, TableTime& time);

}  // namespace penstock
