// SPDX-License-Identifier: Apache-2.0
// Schedules whose stages fold back over the actors (V, waves), and those in which two directions share the actors (replicas).
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <vector>

#include "penstock/schedule.h"
#include "schedule/engine.h"

namespace penstock {

Schedule zero_bubble_v(const ScheduleOptions& options);
Schedule v_half(const ScheduleOptions& options);
Schedule v_min(const ScheduleOptions& options);
Schedule dual_pipe(const ScheduleOptions& options);
Schedule dual_pipe_v(const ScheduleOptions& options);
Schedule dual_pipe_v_jaxpp(const ScheduleOptions& options);
Schedule chimera(const ScheduleOptions& options);
Schedule bitpipe(const ScheduleOptions& options);
Schedule hanayo(const ScheduleOptions& options);
Schedule bidirectional(const ScheduleOptions& options);

// The stages of actor r's chunks where even ones go down the actors and odd ones come back up: r, 2p-1-r, 2p+r, ...
inline std::int32_t folded_stage(int actors, int chunk, int actor) {
  return chunk * actors + (chunk % 2 == 0 ? actor : actors - 1 - actor);
}
inline std::int32_t folded_actor(int actors, int stage) {
  return folded_stage(actors, stage / actors, stage % actors) - stage / actors * actors;
}

// Stages that fold back over the actors, as the engine's work: every action takes one step.
EngineWork folded_work(int actors, int chunks, int microbatches);

// The table in which the oldest micro-batch goes first of those of one kind, an actor holds at most `live_limit` stages' micro-batches
// between F and the end of B (at least the stages of an actor), and where both can run so many backwards and so many forwards take turns,
// backwards first. Turns matter for more micro-batches than fill the pipeline once: were all backwards that can run to go first, forwards
// would leave the actors together, in gaps that longer backwards do not fill.
Schedule oldest_first(const EngineWork& work, int live_limit, int turn);

// `make`'s table for the next multiple of `unit` micro-batches, without those that do not exist: nothing passes between micro-batches, so
// a table stays valid without some, and gets neither slower nor larger.
Schedule in_whole_units(const ScheduleOptions& options, int unit, const std::function<Schedule(int microbatches)>& make);

// When actor r runs F of its first and second chunk and I of its second and first, of micro-batch 0, in steps.
using BlockSteps = std::array<int, 4>;
// The order in which actors run F and I when the block repeats every 6 steps (F, I and W of two chunks), then each as early as it can with
// at most `live` micro-batches on an actor, and W where it would wait.
Schedule repeat_block(const ScheduleOptions& options, int live, const std::function<BlockSteps(int actor)>& block);

// The row of an actor that has two stages of a fold, each kind in the order of micro-batches.
class FoldedRow {
 public:
  FoldedRow(int actors, int actor) : stage_{actor, folded_stage(actors, 1, actor)} {}

  int forwards(int chunk) const { return forwards_[chunk]; }
  void forward(int chunk) { actions.push_back({stage_[chunk], Kind::F, forwards_[chunk]++}); }
  // Whole, or its input gradient with W still to come.
  void backward(int chunk, bool split = false) {
    actions.push_back({stage_[chunk], split ? Kind::I : Kind::B, backwards_[chunk]++});
    if (split) weights.push_back({stage_[chunk], Kind::W, actions.back().microbatch});
  }
  // The oldest W that is still to come, of this chunk or of both (-1). False: there is none.
  bool weight(int chunk = -1) {
    const auto oldest = std::ranges::find_if(weights, [&](const Action& w) { return chunk < 0 || w.stage == stage_[chunk]; });
    if (oldest == weights.end()) return false;
    actions.push_back(*oldest);
    weights.erase(oldest);
    return true;
  }

  std::vector<Action> actions, weights;

 private:
  std::int32_t stage_[2];
  std::int32_t forwards_[2] = {0, 0}, backwards_[2] = {0, 0};
};

// Throw Error that names the schedule and the option.
void require_two_chunks(std::string_view name, const ScheduleOptions& options);
void require_even_actors(std::string_view name, const ScheduleOptions& options);

}  // namespace penstock
