// Tables by list scheduling in steps, for papers that draw a schedule but give no closed order.
#pragma once

#include <functional>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

struct GreedyWork {
  int actors = 1, stages = 1, microbatches = 1;
  std::function<std::int32_t(std::int32_t stage, std::int32_t microbatch)> actor_of;
  int live_limit = 1;  // stages' micro-batches that an actor may hold between F and the end of B; at least the stages of an actor
  int turn = 1;        // where both can run, so many backwards and so many forwards take turns
};
// Whole backwards as long as forwards. Backwards begin, turns alternate, and of one kind the oldest micro-batch goes first. Turns matter
// for more micro-batches than fill the pipeline once: were all backwards that can run to go first, forwards would leave the actors
// together, in gaps that longer backwards do not fill. Throws nothing; a limit under which nothing can run is a bug. O(n log n) in actions.
Schedule oldest_first(const GreedyWork& work);

// rows: of each actor, its F and I in the order in which they must run. Each runs as early as it can (all kinds take one step) while the
// actor holds at most live_limit stages' micro-batches between F and the end of W; where the actor would wait, the oldest W that is left
// runs. A limit under which nothing can run is a bug. Linear in actions and steps.
Schedule fill_weights(const std::vector<std::vector<Action>>& rows, int stages, int microbatches, int live_limit);

// `make`'s table for the next multiple of `unit` micro-batches, without those that do not exist: nothing passes between micro-batches, so
// a table stays valid without some, and gets neither slower nor larger.
Schedule in_whole_units(const ScheduleOptions& options, int unit, const std::function<Schedule(int microbatches)>& make);

}  // namespace penstock
