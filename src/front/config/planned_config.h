// SPDX-License-Identifier: Apache-2.0
// The settings of a configuration that a plan decides.
#pragma once

#include "config/config.h"
#include "penstock/plan_file.h"

namespace penstock {

// Sets the keys that the plan decides, whatever they were: a run of the configuration then is one of the plan, which prepare() takes.
// Throws Error where the batch cannot be cut as the plan says.
void take_plan(Config& config, const PlanFile& plan);
// Whether it did.
bool is_planned(const Config& config);

}  // namespace penstock
