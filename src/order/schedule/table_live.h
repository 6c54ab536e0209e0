// SPDX-License-Identifier: Apache-2.0
// Counts the activations and the parameters that live on each actor of a timed table.
#pragma once

#include <array>
#include <vector>

#include "penstock/table.h"
#include "schedule/kinds.h"
#include "schedule/work.h"

namespace penstock {

// Does what time_table() of penstock/table.h does, for work that is indexed already.
TableTime time_table(const WorkIndex& work, const TableCosts& costs, const TableOptions& options = {});

// Whether the action is the last that needs what the micro-batch's F left: W, B, or an I without a W.
inline bool is_last_need(const WorkIndex& work, const Action& action, std::int32_t microbatch) {
  return action.kind == Kind::B || action.kind == Kind::W || (action.kind == Kind::I && !work.weight[work.unit(action.stage, microbatch)]);
}

// A W, or an I without one, that runs on another actor than its F: when it ends there, this micro-batch of `stage` ends here.
struct ForeignEnd {
  double time = 0;
  std::int32_t stage = 0, microbatch = 0;
};
// Each actor's, in time.
std::vector<std::vector<ForeignEnd>> foreign_ends(const WorkIndex& work, const TableTime& time);

// The kinds of things that come and go: a micro-batch's activations, what F keeps of them, the rest of them; a stage's parameters, the sum
// of its gradients.
enum class Held : std::uint8_t { all, kept, rest, parameters, gradients };

struct LiveChange {
  double time = 0;
  std::int32_t order = 0;  // among those of one time: what ends on a lane or elsewhere, what the row does, what begins on a lane
  Held what = Held::all;
  std::int32_t stage = 0, microbatch = -1;  // -1: of the stage's parameters or gradients
  std::int32_t count = 0;                   // 1: begins; -1: ends
};
// The actions of a table that recomputes, offloads, shards or has several steps, in time.
std::vector<LiveChange> live_changes(const WorkIndex& work, const TableTime& time, std::int32_t actor,
                                     const std::vector<ForeignEnd>& foreign);

// Calls visit(micro-batch) for each of its actor's that the action is the last to need.
template <class Visit>
void for_each_ended(const WorkIndex& work, const Action& action, std::int32_t actor, Visit&& visit) {
  if (action.kind != Kind::B && action.kind != Kind::I && action.kind != Kind::W) return;
  for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
    if (is_last_need(work, action, m) && work.forward[work.unit(action.stage, m)].actor == actor) visit(m);
}

// Calls change(time, what, stage, micro-batch, count) for all that begins (count 1) and ends (-1) to live on the actor, in time; what ends
// at a time comes before what begins then. `foreign`: the actor's. Linear; where lanes have to be merged, times the logarithm.
template <class Change>
void for_each_live_change(const WorkIndex& work, const TableTime& time, std::int32_t actor, const std::vector<ForeignEnd>& foreign,
                          Change&& change) {
  if (!work.recompute.empty() || !work.offload.empty() || work.has_sharding || work.schedule->steps > 1) {
    for (const LiveChange& c : live_changes(work, time, actor, foreign)) change(c.time, c.what, c.stage, c.microbatch, c.count);
    return;
  }
  const std::size_t a = actor;
  const std::vector<Action>& row = work.schedule->actors[a];
  auto next = foreign.begin();
  const auto foreign_until = [&](double end) {
    for (; next != foreign.end() && next->time <= end; ++next) change(next->time, Held::all, next->stage, next->microbatch, -1);
  };
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Action& action = row[i];
    if (action.kind == Kind::F && work.shape->has_backward[action.stage]) {
      foreign_until(time.start[a][i]);
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
        change(time.start[a][i], Held::all, action.stage, m, 1);
    }
    for_each_ended(work, action, actor, [&](std::int32_t m) {
      foreign_until(time.end[a][i]);
      change(time.end[a][i], Held::all, action.stage, m, -1);
    });
  }
  foreign_until(time.makespan);
}

// Sums the amounts of for_each_live_change, in whole parts of the largest amount (of 1, where all are whole): what has ended leaves no
// rounding behind. The costs must outlive it.
class LiveSum {
 public:
  explicit LiveSum(const TableCosts& costs);
  // Counts `count` more and returns what lives now.
  double add(Held what, std::int32_t stage, std::int32_t microbatch, std::int32_t count) {
    parts_ += parts_of_[costs_->row(stage, microbatch)][static_cast<std::size_t>(what)] * count;
    return static_cast<double>(parts_) * size_;
  }
  // The parameters that the actor has all the time: of what it computes with and never gathers.
  double add_resident(const WorkIndex& work, std::int32_t actor);

 private:
  const TableCosts* costs_;
  std::vector<std::array<std::int64_t, 5>> parts_of_;  // of each of the costs' stages, by Held
  std::int64_t parts_ = 0;
  double size_ = 0;  // of a part
  bool has_parameters_ = false;
};

// TableTime::peak_live and peak_time of what is known otherwise.
void fill_peaks(const WorkIndex& work, const TableCosts& costs, TableTime& time);

}  // namespace penstock
