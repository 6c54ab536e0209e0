// SPDX-License-Identifier: Apache-2.0
#include "search/relieve.h"

#include <algorithm>
#include <cmath>

#include "base/numbers.h"
#include "schedule/table_live.h"
#include "search/judge.h"

namespace penstock {
namespace {

// A way to hold less on an actor at a time, by what it adds to the actor's time for each activation that it frees.
struct Relief {
  Kind kind = Kind::R;  // R; OFFLOAD and its RELOAD; RELOAD: comes back later
  std::int32_t stage = -1, microbatch = -1;
  double price = 0;
  double backward = 0;  // when that starts

  bool is_better_than(const Relief& other) const {
    if (stage < 0 || other.stage < 0) return stage >= 0;
    return price != other.price ? price < other.price : backward > other.backward;
  }
};

// A table that is timed again after each change.
class Reliever {
 public:
  Reliever(const SearchProblem& problem, Schedule&& schedule) : problem_(problem), schedule_(std::move(schedule)) {
    schedule_.cells.clear();
    update();
  }

  std::optional<Schedule> result() {
    std::int64_t left = 2 * static_cast<std::int64_t>(work_.forward.size());  // R or OFFLOAD, and then RELOAD later: of each at most
    while (!keeps_limit(problem_, time_.peak())) {
      for (std::int32_t actor = 0; actor < problem_.actors; ++actor) {
        if (keeps_limit(problem_, time_.peak_live[actor])) continue;
        const Relief relief = choose(actor, too_full_at(actor));
        if (relief.stage < 0 || left-- == 0) return {};
        apply(relief, actor);
      }
      update();
    }
    take_back();
    return std::move(schedule_);
  }

 private:
  double time(Kind kind, std::int32_t stage, std::int32_t m) const { return problem_.costs.of(stage, m).of(kind); }
  double start(Position p) const { return time_.start[p.actor][p.index]; }
  double end(Position p) const { return time_.end[p.actor][p.index]; }

  void update() {
    work_ = index_work(schedule_, problem_.shape, problem_.microbatches);
    time_ = time_table(work_, problem_.costs, {.network = problem_.network});
    foreign_ = foreign_ends(work_, time_);
  }

  // When it first holds too much.
  double too_full_at(std::int32_t actor) const {
    LiveSum sum(problem_.costs);
    if (!keeps_limit(problem_, sum.add_resident(work_, actor))) return 0;
    double first = kInfinity;
    for_each_live_change(work_, time_, actor, foreign_[actor],
                         [&](double when, Held what, std::int32_t stage, std::int32_t m, std::int32_t count) {
                           if (!keeps_limit(problem_, sum.add(what, stage, m, count))) first = std::min(first, when);
                         });
    return first;
  }

  Position of(const std::vector<Position>& where, std::size_t unit) const { return where.empty() ? Position{} : where[unit]; }

  // Idle before an action of the actor's compute.
  double idle_before(Position here) const {
    const std::vector<Action>& row = schedule_.actors[here.actor];
    double before = 0;
    for (std::int32_t i = here.index; i-- > 0;) {
      if (is_host_copy(row[i].kind) || is_collective(row[i].kind)) continue;
      before = time_.end[here.actor][i];
      break;
    }
    return start(here) - before;
  }

  // Chooses among micro-batches that are there, and not yet at their backward, at `now`.
  Relief choose(std::int32_t actor, double now) const {
    Relief best;
    for (std::int32_t s = 0; s < std::ssize(problem_.shape.predecessors); ++s) {
      if (!problem_.shape.has_backward[s]) continue;
      for (std::int32_t m = 0; m < problem_.microbatches; ++m) {
        const StageCosts& costs = problem_.costs.of(s, m);
        const double freed = costs.live - costs.kept;
        if (freed <= 0) continue;
        const std::size_t unit = work_.unit(s, m);
        const Position forward = work_.forward[unit], backward = work_.backward[unit];
        if (forward.actor != actor || start(forward) > now || start(backward) <= now || of(work_.recompute, unit)) continue;
        const auto consider = [&](Kind kind, double cost) {
          const Relief relief{kind, s, m, std::max(cost, 0.0) / freed, start(backward)};
          if (relief.is_better_than(best)) best = relief;
        };
        if (const Position reload = of(work_.reload, unit)) {
          const double until = row_time(backward);
          if (start(reload) <= now && reload.index + 1 < backward.index)
            consider(Kind::RELOAD, time(Kind::RELOAD, s, m) - (start(backward) - until));
          continue;
        }
        if (problem_.recompute) consider(Kind::R, time(Kind::R, s, m) - idle_before(backward));
        if (!problem_.offload) continue;
        if (const double away = away_at(forward, s, m); away <= now)  // else it would still be there
          consider(Kind::OFFLOAD, away + time(Kind::RELOAD, s, m) - start(backward));
      }
    }
    return best;
  }

  // When the compute before an action in its row has ended.
  double row_time(Position here) const { return start(here) - idle_before(here); }

  // When what a forward keeps would be in the host's memory.
  double away_at(Position forward, std::int32_t stage, std::int32_t m) const {
    return std::max(end(forward), lane_free(forward)) + time(Kind::OFFLOAD, stage, m);
  }

  // When the copies before an action in its row have ended.
  double lane_free(Position here) const {
    const std::vector<Action>& row = schedule_.actors[here.actor];
    for (std::int32_t i = here.index; i-- > 0;)
      if (is_host_copy(row[i].kind)) return time_.end[here.actor][i];
    return 0;
  }

  void insert(std::int32_t actor, std::int32_t index, const Action& action) {
    std::vector<Action>& row = schedule_.actors[actor];
    row.insert(row.begin() + index, action);
  }
  // Before an action, and the pair that it is fused into.
  std::int32_t before(Position here) const {
    const std::vector<Action>& row = schedule_.actors[here.actor];
    while (here.index > 0 && row[here.index - 1].fused_with_next) --here.index;
    return here.index;
  }
  std::int32_t behind(Position here) const {
    const std::vector<Action>& row = schedule_.actors[here.actor];
    while (row[here.index].fused_with_next && here.index + 1 < std::ssize(row)) ++here.index;
    return here.index + 1;
  }

  void apply(const Relief& relief, std::int32_t actor) {
    const std::size_t unit = work_.unit(relief.stage, relief.microbatch);
    const Position forward = work_.forward[unit], backward = work_.backward[unit];
    if (relief.kind == Kind::R) return insert(actor, before(backward), {relief.stage, Kind::R, relief.microbatch});
    if (relief.kind == Kind::RELOAD) {
      const std::int32_t from = work_.reload[unit].index;
      insert(actor, before(backward), {relief.stage, Kind::RELOAD, relief.microbatch});
      schedule_.actors[actor].erase(schedule_.actors[actor].begin() + from);
      return;
    }
    insert(actor, reload_place(behind(forward), backward, relief), {relief.stage, Kind::RELOAD, relief.microbatch});
    insert(actor, behind(forward), {relief.stage, Kind::OFFLOAD, relief.microbatch});
  }

  // The last place in the row from which it would be back in time.
  std::int32_t reload_place(std::int32_t first, Position backward, const Relief& relief) const {
    const double latest = start(backward) - time(Kind::RELOAD, relief.stage, relief.microbatch);
    Position place{backward.actor, before(backward)};
    while (place.index > first && (row_time(place) > latest || is_inside_pair(place))) --place.index;
    return place.index;
  }
  bool is_inside_pair(Position here) const { return here.index > 0 && schedule_.actors[here.actor][here.index - 1].fused_with_next; }

  // Takes back reliefs that are not needed, from the last on.
  void take_back() {
    const std::int64_t reliefs = count_of(schedule_, Kind::R) + count_of(schedule_, Kind::OFFLOAD);
    std::int64_t actions = 0;
    for (const auto& row : schedule_.actors) actions += static_cast<std::int64_t>(row.size());
    if (reliefs * actions > kMostWork) return;
    for (std::size_t a = 0; a < schedule_.actors.size(); ++a) {
      for (std::size_t i = schedule_.actors[a].size(); i-- > 0;) {
        const Action action = schedule_.actors[a][i];
        if (action.kind != Kind::R && action.kind != Kind::OFFLOAD) continue;
        const std::vector<Action> row = schedule_.actors[a];
        const double makespan = time_.makespan;
        std::erase_if(schedule_.actors[a],
                      [&](const Action& x) { return is_residual(x.kind) && x.stage == action.stage && x.microbatch == action.microbatch; });
        update();
        if (keeps_limit(problem_, time_.peak()) && time_.makespan <= makespan) continue;
        schedule_.actors[a] = row;
        update();
      }
    }
  }

  static constexpr std::int64_t kMostWork = 2'000'000;  // some tenths of a second

  const SearchProblem& problem_;
  Schedule schedule_;
  WorkIndex work_;
  TableTime time_;
  std::vector<std::vector<ForeignEnd>> foreign_;
};

}  // namespace

std::optional<Schedule> relieve(const SearchProblem& problem, Schedule schedule) {
  return Reliever(problem, std::move(schedule)).result();
}

std::int64_t count_of(const Schedule& schedule, Kind kind) {
  std::int64_t count = 0;
  for (const auto& row : schedule.actors)
    for (const Action& action : row) count += action.kind == kind ? action.count : 0;
  return count;
}

}  // namespace penstock
