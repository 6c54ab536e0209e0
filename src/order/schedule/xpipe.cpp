// SPDX-License-Identifier: Apache-2.0
// XPipe (Guan et al., 1911.04610; with one micro-batch a step SpecTrain, 1809.02839): PipeDream in which parameters are predicted. A step's
// forwards and backwards read what a stage's parameters are predicted to be when actor 0 begins the step's last backward, so that all
// stages aim at one version: F from the newest when the step's first micro-batch comes, B from the newest when it goes back. By how many
// updates is counted in the table, where F and B take equally long; the paper's formula says the same for one micro-batch a step, and
// less for several.
//
//   penstock schedule xpipe --actors 3 --microbatches 1 --window 4 --show
//   actor 0 | @0F0   @0+1F1 @0+2F2 .      .      .      .      @0B0--------- @1+2F3 @1B1--------- .      @2B2--------- .      @3B3---------
//   actor 1 | .      @0F0   @0+1F1 .      .      @0B0--------- @1+1F2 @1B1--------- @2+1F3 @2B2--------- .      @3B3---------
//   actor 2 | .      .      @0+1F0 @0+1B0------- @1+1F1 @1+1B1------- @2+1F2 @2+1B2------- @3+1F3 @3+1B3-------
//   time 18, bubble 33.3 %, live 3 2 1
#include <algorithm>

#include "penstock/table.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

// By step: when actor 0 begins its last backward.
std::vector<double> horizons(const Schedule& schedule, const std::vector<std::vector<double>>& end, int microbatches) {
  std::vector<double> out(schedule.steps);
  for (std::size_t i = 0; i < schedule.actors[0].size(); ++i) {
    const Action& action = schedule.actors[0][i];
    if (action.kind == Kind::B && (action.microbatch + 1) % microbatches == 0) out[action.microbatch / microbatches] = end[0][i] - 1;
  }
  return out;
}

}  // namespace

Schedule xpipe(const ScheduleOptions& options) {
  Schedule schedule = pipedream(options);
  // Where F and B take 1 and all else nothing.
  const auto end = time_table(schedule, shape_of(schedule), uniform_costs(schedule.stages(), {.backward = 1})).end;
  const std::vector<double> horizon = horizons(schedule, end, options.microbatches);
  for (std::size_t actor = 0; actor < schedule.actors.size(); ++actor) {
    std::vector<Action>& row = schedule.actors[actor];
    std::vector<double> updated;  // when
    for (std::size_t i = 0; i < row.size(); ++i)
      if (row[i].kind == Kind::U) updated.push_back(end[actor][i]);
    std::vector<Action> first_forward(schedule.steps), first_backward(schedule.steps);  // what they read
    std::int32_t made = 0;
    for (Action& action : row) {
      made += action.kind == Kind::U;
      if (action.kind == Kind::U) continue;
      const std::int32_t step = action.microbatch / options.microbatches;
      Action& first = (action.kind == Kind::F ? first_forward : first_backward)[step];
      if (first.version < 0) {
        const auto by_then = std::lower_bound(updated.begin(), updated.end(), horizon[step]) - updated.begin();
        first.version = made;
        first.ahead = std::max(0, static_cast<std::int32_t>(by_then) - made);
      }
      action.version = first.version;
      action.ahead = first.ahead;
    }
  }
  return schedule;
}

}  // namespace penstock
