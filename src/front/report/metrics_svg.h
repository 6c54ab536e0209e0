// SPDX-License-Identifier: Apache-2.0
// A run's metrics as curves.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "report/step_metrics.h"

namespace penstock {

// Reads the lines of a run's metrics.jsonl: step, losses, seconds and rate of each. The steps are in order; of one that was done again,
// after a resume, the last line counts. Throws Error, with FILE:LINE, for a line that is no step's metrics.
std::vector<StepMetrics> parse_metrics(std::string_view lines, const std::string& file);

// The median of one of the steps' figures, seconds or rate; of an even number of steps the higher one in the middle, 0 without steps.
double median_of(const std::vector<StepMetrics>& steps, double StepMetrics::* figure);

// A standalone SVG: the loss of each step as a line, validation losses as points, and below them the rate, over the steps, at least one.
// Steps that share a pixel's column are drawn as its first, least, largest and last. On a page the picture takes the page's colours.
std::string metrics_svg(const std::vector<StepMetrics>& steps);

}  // namespace penstock
