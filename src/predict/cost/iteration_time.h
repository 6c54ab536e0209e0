// SPDX-License-Identifier: Apache-2.0
// GraphPipe's formula for the time of a step of stages that branch and join.
#pragma once

#include <span>

#include "penstock/schedule.h"

namespace penstock {

// Seconds of a step: samples * slowest + the longest path through the stages, where stage s counts sizes[s] * per_sample[s] (derived from
// the logged plans of 2406.17145). `slowest`: seconds per sample that no stage exceeds. sizes: samples in a micro-batch of each stage;
// per_sample: seconds of each stage.
double iteration_time(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample, double samples,
                      double slowest);
// The second term alone.
double longest_path(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample);

}  // namespace penstock
