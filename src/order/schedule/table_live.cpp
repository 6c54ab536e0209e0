// SPDX-License-Identifier: Apache-2.0
#include "schedule/table_live.h"

#include <algorithm>
#include <cmath>

#include "schedule/slices.h"
#include "schedule/versions.h"

namespace penstock {

std::vector<std::vector<ForeignEnd>> foreign_ends(const WorkIndex& work, const TableTime& time) {
  const auto& rows = work.schedule->actors;
  std::vector<std::vector<ForeignEnd>> out(rows.size());
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t i = 0; i < rows[a].size(); ++i) {
      const Action& action = rows[a][i];
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
        if (!is_last_need(work, action, m)) continue;
        const std::size_t home = work.forward[work.unit(action.stage, m)].actor;
        if (home != a) out[home].push_back({time.end[a][i], action.stage, m});
      }
    }
  }
  for (auto& ends : out) std::sort(ends.begin(), ends.end(), [](const ForeignEnd& x, const ForeignEnd& y) { return x.time < y.time; });
  return out;
}

namespace {

Held held_by_forward(const WorkIndex& work, std::int32_t stage, std::int32_t microbatch) {
  return !work.recompute.empty() && work.recompute[work.unit(stage, microbatch)] ? Held::kept : Held::all;
}

// Places among changes of one time, as LiveChange::order says.
constexpr std::int32_t kEnds = 0, kRow = 1, kBegins = 2;

// Changes that end elsewhere, and copies of parameters: one is made ahead of what first needs it, and ends behind its last reader.
std::vector<LiveChange> changes_beside(const WorkIndex& work, const TableTime& time, std::int32_t actor,
                                       const std::vector<ForeignEnd>& foreign) {
  std::vector<LiveChange> out;
  for (const ForeignEnd& end : foreign) out.push_back({end.time, kEnds, Held::all, end.stage, end.microbatch, -1});
  if (work.schedule->steps == 1) return out;
  for (const HeldVersion& held : versions_beside(*work.schedule, actor)) {
    const std::int32_t stage = number_of({held.stage}, work.schedule->slices, work.schedule->blocks);
    out.push_back({time.start[actor][held.first], kRow, Held::parameters, stage, -1, 1});
    out.push_back({time.end[actor][held.last], kRow, Held::parameters, stage, -1, -1});
  }
  return out;
}

}  // namespace

std::vector<LiveChange> live_changes(const WorkIndex& work, const TableTime& time, std::int32_t actor,
                                     const std::vector<ForeignEnd>& foreign) {
  std::vector<LiveChange> out = changes_beside(work, time, actor, foreign);
  const std::vector<Action>& row = work.schedule->actors[actor];
  std::vector<bool> summed(work.shape->predecessors.size(), false);  // of each stage: since its last REDUCE_GRAD
  std::vector<std::int32_t> reductions(summed.size(), 0);            // that are still to come
  for (const Action& action : row) reductions[action.stage] += action.kind == Kind::REDUCE_GRAD;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Action& action = row[i];
    const std::int32_t stage = first_slice(action.stage, *work.schedule);
    const double start = time.start[actor][i], end = time.end[actor][i];
    const auto add = [&](double when, std::int32_t order, Held what, std::int32_t count) {
      out.push_back({when, order, what, stage, -1, count});
    };
    const auto add_each = [&](double when, std::int32_t order, auto what, std::int32_t count) {
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
        out.push_back({when, order, what(m), action.stage, m, count});
    };
    const auto rest = [](std::int32_t) { return Held::rest; };
    const auto by_forward = [&](std::int32_t m) { return held_by_forward(work, action.stage, m); };
    if (action.kind == Kind::F && work.shape->has_backward[action.stage]) {
      add_each(start, kRow, by_forward, 1);
    } else if (action.kind == Kind::R) {
      add_each(start, kRow, rest, 1);
    } else if (action.kind == Kind::OFFLOAD) {
      add_each(end, kEnds, rest, -1);
    } else if (action.kind == Kind::RELOAD) {
      add_each(start, kBegins, rest, 1);
    } else if (action.kind == Kind::UNSHARD) {
      add(start, kBegins, Held::parameters, 1);
    } else if (action.kind == Kind::RESHARD) {
      add(end, kRow, Held::parameters, -1);
    } else if (action.kind == Kind::REDUCE_GRAD) {
      if (summed[stage]) add(end, kEnds, Held::gradients, -1);
      summed[stage] = false;
      --reductions[stage];
    } else {
      if ((action.kind == Kind::B || action.kind == Kind::W) && reductions[stage] > 0 && !summed[stage]) {
        add(start, kRow, Held::gradients, 1);
        summed[stage] = true;
      }
      for_each_ended(work, action, actor, [&](std::int32_t m) { out.push_back({end, kRow, Held::all, action.stage, m, -1}); });
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const LiveChange& x, const LiveChange& y) { return x.time != y.time ? x.time < y.time : x.order < y.order; });
  return out;
}

LiveSum::LiveSum(const TableCosts& costs) : costs_(&costs) {
  constexpr double kParts = 0x1p35;  // so that kMostForwards of the largest amount fit
  double largest = 0;
  bool whole = true;
  for (const StageCosts& stage : costs.stages) {
    for (const double amount : {stage.live, stage.kept, stage.parameters, stage.gradients}) {
      largest = std::max(largest, amount);
      whole = whole && amount == std::floor(amount);
    }
    has_parameters_ = has_parameters_ || stage.parameters > 0;
  }
  size_ = whole && largest <= kParts ? 1 : largest / kParts;
  const auto parts = [&](double amount) -> std::int64_t { return size_ > 0 ? std::llround(amount / size_) : 0; };
  for (const StageCosts& stage : costs.stages)
    parts_of_.push_back(
        {parts(stage.live), parts(stage.kept), parts(stage.live) - parts(stage.kept), parts(stage.parameters), parts(stage.gradients)});
}

double LiveSum::add_resident(const WorkIndex& work, std::int32_t actor) {
  if (!has_parameters_) return 0;
  std::vector<std::int32_t> uses(work.shape->predecessors.size(), 0);  // 1: computes with it
  const std::vector<Action>& row = work.schedule->actors[actor];
  for (const Action& action : row) uses[first_slice(action.stage, *work.schedule)] |= is_compute(action.kind) && action.kind != Kind::W;
  for (const Action& action : row)
    if (action.kind == Kind::UNSHARD) uses[action.stage] = 0;
  double live = 0;
  for (std::size_t stage = 0; stage < uses.size(); ++stage) live = add(Held::parameters, static_cast<std::int32_t>(stage), -1, uses[stage]);
  return live;
}

void fill_peaks(const WorkIndex& work, const TableCosts& costs, TableTime& time) {
  const std::size_t actors = work.schedule->actors.size();
  const std::vector<std::vector<ForeignEnd>> foreign = foreign_ends(work, time);
  time.peak_live.assign(actors, 0);
  time.peak_time.assign(actors, 0);
  const LiveSum empty(costs);
  for (std::int32_t a = 0; a < static_cast<std::int32_t>(actors); ++a) {
    LiveSum sum = empty;
    double& peak = time.peak_live[a] = sum.add_resident(work, a);
    const auto change = [&](double when, Held what, std::int32_t stage, std::int32_t microbatch, std::int32_t count) {
      const double live = sum.add(what, stage, microbatch, count);
      if (live <= peak) return;
      peak = live;
      time.peak_time[a] = when;
    };
    for_each_live_change(work, time, a, foreign[a], change);
  }
}

}  // namespace penstock
