// One generator per published schedule. Each expects actors, chunks and microbatches >= 1 (make_schedule checks) and gives
// stage c * actors + r to actor r as its chunk c.
#pragma once

#include <functional>

#include "penstock/schedule.h"

namespace penstock {

Schedule sequential(const ScheduleOptions& options);
Schedule gpipe(const ScheduleOptions& options);
Schedule one_forward_one_backward(const ScheduleOptions& options);
Schedule eager_one_forward_one_backward(const ScheduleOptions& options);
Schedule interleaved_one_forward_one_backward(const ScheduleOptions& options);
Schedule zero_bubble_h1(const ScheduleOptions& options);

// One stage per actor: actor i runs warm_up(i) forwards, then a backward and a forward in turn, then the remaining backwards.
Schedule alternating(const ScheduleOptions& options, const std::function<int(int actor)>& warm_up);

}  // namespace penstock
