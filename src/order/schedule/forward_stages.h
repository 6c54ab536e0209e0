// SPDX-License-Identifier: Apache-2.0
// Stages that only run forward, as those of frozen layers before all that is trained.
#pragma once

#include "penstock/schedule.h"

namespace penstock {

// Whether a stage's work may take so much over what that of another stage takes.
bool is_relative_time(double time);
inline constexpr const char* kRelativeTimes = "above 0 and at most 1e6";

// Puts stages in front of all others, each of which has a forward alone: the last of them feeds every stage that nothing fed. Numbers the
// others behind them; `times` as in Schedule::forward_times. The caller places the forwards.
void add_forward_stages(Schedule& schedule, const std::vector<double>& times);
// The table without actions that these stages have nothing to do for: backwards, updates and sums of gradients.
Schedule without_absent_backwards(Schedule schedule, const StageShape& shape);
// The table's forwards alone. Without updates there is one version of the parameters, and all is one step.
Schedule forwards_of(Schedule schedule);

}  // namespace penstock
