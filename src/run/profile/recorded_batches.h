// SPDX-License-Identifier: Apache-2.0
// Consecutive steps whose batches had programs of their own, as they were predicted and as they ran.
#pragma once

#include <string>
#include <vector>

#include "driver/training.h"
#include "penstock/timeline.h"

namespace penstock {

// All steps one after the other: first as predicted (the tables, and behind each what a step takes beyond it), where every step was; then
// as measured. There is at least one.
std::vector<Timeline> timelines_of(const std::vector<RecordedBatch>& steps);

// One timeline of several, each of which begins where the one before it ended. They have the same devices.
Timeline joined(const std::vector<Timeline>& steps, const std::string& title);

}  // namespace penstock
