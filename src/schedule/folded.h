// Schedules whose stages fold back over the actors (V, waves), and those in which two directions share the actors (replicas).
#pragma once

#include <array>
#include <functional>

#include "penstock/schedule.h"

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

// Of actor r's chunks where even ones go down the actors and odd ones come back up: r, 2p-1-r, 2p+r, ...
inline std::int32_t folded_stage(int actors, int chunk, int actor) {
  return chunk * actors + (chunk % 2 == 0 ? actor : actors - 1 - actor);
}
inline std::int32_t folded_actor(int actors, int stage) {
  return folded_stage(actors, stage / actors, stage % actors) - stage / actors * actors;
}

// When actor r runs F of its first and second chunk and I of its second and first, of micro-batch 0, in steps.
using BlockSteps = std::array<int, 4>;
// The order in which actors run F and I when the block repeats every 6 steps (F, I and W of two chunks), then each as early as it can with
// at most `live` micro-batches on an actor, and W where it would wait.
Schedule repeat_block(const ScheduleOptions& options, int live, const std::function<BlockSteps(int actor)>& block);

// Throw Error that names the schedule and the option.
void require_two_chunks(std::string_view name, const ScheduleOptions& options);
void require_even_actors(std::string_view name, const ScheduleOptions& options);

}  // namespace penstock
