// SPDX-License-Identifier: Apache-2.0
// The planner of a run's batches, where each has a program of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "config/compile.h"
#include "config/config.h"
#include "data/dataset.h"
#include "driver/batch_steps.h"

namespace penstock {

// Plans a batch of these samples and makes its program. All calls come from one thread, whichever it is.
using PlanStep = std::function<BatchStep(const std::vector<std::int64_t>& samples)>;

// The planner that the configuration names; none where all batches have one program. All must outlive it. Throws Error where it
// plans no such data, model or mesh, as BatchSteps and ModuleSteps do.
PlanStep batch_planner(const Config& config, const Prepared& prepared, const Dataset& data);

// A planned batch's program as compile_gradients() makes one: of the same micro-batches by the same table, without an update.
Program gradient_program(const Config& config, const Prepared& prepared, const BatchStep& step);

}  // namespace penstock
