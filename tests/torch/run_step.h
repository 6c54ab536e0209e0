// SPDX-License-Identifier: Apache-2.0
// One step of a configuration on threads, as `penstock check` runs it.
#pragma once

#include <cstdint>
#include <memory>

#include "config/compile.h"
#include "driver/check.h"
#include "penstock/trace.h"

namespace penstock::test {

// `on_lanes`: the devices wait by themselves, as those of the stand-in do anyway.
StepGradients step_of(const Config& config, const Prepared& prepared, const Program& program, bool on_lanes = false);

// The same on data of one's own.
StepGradients step_on(std::shared_ptr<const DataSource> data, const Config& config, const Prepared& prepared, const Program& program,
                      bool on_lanes = false);

// The step of a model without a configuration that reads drawn texts, as DagModel does.
StepGradients step_of(const Model& model, const Program& program);

// The step that all others are compared with.
StepGradients sequential_step(const Config& config, std::int64_t microbatches = 1);

}  // namespace penstock::test
