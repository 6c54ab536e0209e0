// SPDX-License-Identifier: Apache-2.0
// Frozen stages in the idle time of a step (DiffusionPipe, Tian et al., 2405.01248, section 5, with micro-batches as its partial batches):
// what is not trained needs no gradient and no parameters of the step, so an actor computes the next step's of it where it would wait.
// Whichever actor waits takes it, as all of them have the frozen parameters.
//
// The first step's frozen forwards stand ahead of it, on all actors; each step then has the next one's. Those that find no place in it
// stand behind it. Where all find one, K steps of time T with frozen work of Q take Q/p + K T.
//
//   penstock schedule 1f1b --actors 2 --microbatches 2 --frozen 1 --window 2 --show
//   actor 0 | 0F0 1F0 1F1 0F3 .   1B0---- .   1B1---- 1F2 1F3 .   .   1B2---- .   1B3----
//   actor 1 | 0F1 0F2 2F0 2B0---- 2F1 2B1---- .   .   .   2F2 2B2---- 2F3 2B3----
//   time 19, bubble 26.3 %, live 2 1
#include <algorithm>
#include <optional>

#include "penstock/table.h"
#include "schedule/forward_stages.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

// A time in which an actor waits, and the action of its row that stands behind it.
struct Gap {
  double begin, end;
  std::size_t before;
};

// The gaps of each actor in a step that takes `makespan`.
struct Gaps {
  std::vector<std::vector<Gap>> actors;
  double makespan = 0;
};

Gaps gaps_of(const Schedule& step) {
  const TableTime time = time_table(step, shape_of(step), uniform_costs(step));
  Gaps out{std::vector<std::vector<Gap>>(step.actors.size()), time.makespan};
  for (std::size_t actor = 0; actor < out.actors.size(); ++actor) {
    double free = 0;
    for (std::size_t a = 0; a <= time.start[actor].size(); ++a) {
      const bool is_last = a == time.start[actor].size();
      const double until = is_last ? time.makespan : time.start[actor][a];
      if (until > free) out.actors[actor].push_back({free, until, a});
      if (!is_last) free = time.end[actor][a];
    }
  }
  return out;
}

// A frozen forward on an actor, in front of the action of its row at `before`.
struct Placed {
  Action action;
  std::size_t actor;
  std::size_t before;
  double begin;
};

// The gap that can take work of `time`, not before `ready`, soonest; or none. The actor's gaps in front of it are kept.
struct Found {
  std::size_t actor, gap;
  double begin;
};
std::optional<Found> soonest(const Gaps& gaps, double time, double ready) {
  std::optional<Found> found;
  for (std::size_t actor = 0; actor < gaps.actors.size(); ++actor)
    for (std::size_t g = 0; g < gaps.actors[actor].size(); ++g) {
      const Gap& gap = gaps.actors[actor][g];
      const double begin = std::max(gap.begin, ready);
      if (found && begin >= found->begin) break;
      if (begin + time <= gap.end + 1e-9) {
        found = {actor, g, begin};
        break;
      }
    }
  return found;
}

// Leaves of the gap what is in front of and behind the work that it takes.
void take(std::vector<Gap>& gaps, std::size_t g, double begin, double time) {
  const Gap gap = gaps[g];
  gaps[g].begin = begin + time;
  if (begin > gap.begin) gaps.insert(gaps.begin() + static_cast<std::ptrdiff_t>(g), {gap.begin, begin, gap.before});
}

// Micro-batches' forwards of all frozen stages, in the gaps and behind them. A stage follows the one before it.
std::vector<Placed> placed_in(Gaps gaps, const Schedule& step, const std::vector<double>& times) {
  std::vector<double> free(gaps.actors.size(), gaps.makespan);  // behind the step
  std::vector<double> ready(static_cast<std::size_t>(step.microbatches()), 0);
  std::vector<Placed> out;
  for (std::size_t stage = 0; stage < times.size(); ++stage)
    for (std::size_t m = 0; m < ready.size(); ++m) {
      const Action action{static_cast<std::int32_t>(stage), Kind::F, static_cast<std::int32_t>(m)};
      if (const std::optional<Found> found = soonest(gaps, times[stage], ready[m])) {
        std::vector<Gap>& row = gaps.actors[found->actor];
        out.push_back({action, found->actor, row[found->gap].before, found->begin});
        take(row, found->gap, found->begin, times[stage]);
        ready[m] = found->begin + times[stage];
        continue;
      }
      const auto actor = static_cast<std::size_t>(std::ranges::min_element(free) - free.begin());
      const double begin = std::max(free[actor], ready[m]);
      out.push_back({action, actor, step.actors[actor].size(), begin});
      free[actor] = ready[m] = begin + times[stage];
    }
  std::ranges::stable_sort(out, {}, &Placed::begin);
  return out;
}

void append(std::vector<Action>& row, Action action, std::int32_t step_microbatches, std::int32_t step) {
  if (action.microbatch >= 0) action.microbatch += step * step_microbatches;
  row.push_back(action);
}

}  // namespace

Schedule with_frozen_stages(Schedule step, const std::vector<double>& times, int steps) {
  const std::int32_t microbatches = step.microbatches();
  const Gaps gaps = gaps_of(step);
  const std::vector<Placed> inside = placed_in(gaps, step, times);
  const std::vector<Placed> ahead = placed_in({std::vector<std::vector<Gap>>(gaps.actors.size())}, step, times);
  add_forward_stages(step, times);
  Schedule out = step;
  // The frozen forwards in front of each action of a row, and behind the last.
  std::vector<std::vector<std::vector<Action>>> in_front;
  for (const auto& row : step.actors) in_front.emplace_back(row.size() + 1);
  for (const Placed& next : inside) in_front[next.actor][next.before].push_back(next.action);
  for (auto& row : out.actors) row.clear();
  for (const Placed& first : ahead) append(out.actors[first.actor], first.action, microbatches, 0);
  for (std::size_t actor = 0; actor < out.actors.size(); ++actor)
    for (std::int32_t k = 0; k < steps; ++k)
      for (std::size_t a = 0; a <= step.actors[actor].size(); ++a) {
        if (k + 1 < steps)
          for (const Action& next : in_front[actor][a]) append(out.actors[actor], next, microbatches, k + 1);
        if (a < step.actors[actor].size()) append(out.actors[actor], step.actors[actor][a], microbatches, k);
      }
  return steps > 1 ? with_step_updates(std::move(out), steps) : out;
}

}  // namespace penstock
