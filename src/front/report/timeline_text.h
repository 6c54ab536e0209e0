// SPDX-License-Identifier: Apache-2.0
// Draws timelines as text for the terminal.
#pragma once

#include <string>
#include <vector>

#include "penstock/timeline.h"
#include "simulate/explain.h"

namespace penstock {

struct TimelineTextOptions {
  int columns = 100;  // characters for the time; at least 1
  bool colour = false;
};

// One row per device; each column shows the kind that took most of its time ('.': nothing). Where memory is known, a line under it shows
// the largest amount in each column, on one scale for all devices, and the peak. Several timelines are drawn one under the other on one
// scale of time. Then come the axis and the legend.
std::string timeline_text(const std::vector<Timeline>& timelines, const TimelineTextOptions& options = {});
// A table of where each device's idle time goes, and below it the sentences of explain_text.
std::string explanation_text(const Timeline& timeline, const Explanation& explanation);

}  // namespace penstock
