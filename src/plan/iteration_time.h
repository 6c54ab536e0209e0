// What GraphPipe's formula says of a pipeline of stages that branch and join.
#pragma once

#include <span>

#include "penstock/schedule.h"

namespace penstock {

// The step: samples * slowest + the longest way through the stages, each counting sizes[s] * per_sample[s] (read off the logged plans of
// 2406.17145). `slowest`: seconds per sample that no stage exceeds. sizes: samples in a micro-batch of each stage; per_sample: seconds.
double iteration_time(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample, double samples,
                      double slowest);
// The second term.
double longest_way(const StageShape& shape, std::span<const int> sizes, std::span<const double> per_sample);

}  // namespace penstock
