// A plan as a picture: its stages, what flows between them, and the step below.
#pragma once

#include <string>

#include "plan/plan_file.h"
#include "simulate/timeline.h"

namespace penstock {

// Standalone SVG of the stages from left to right, in layers by the longest way to each, and in several rows where there are many: name,
// devices, micro-batch, times, memory, and a bar for its share of the busiest stage's time; on each edge the bytes of one micro-batch. Long
// names take several lines. On a page it takes the page's colours.
std::string plan_svg(const PlanFile& plan);
// With the timeline under it.
std::string plan_svg(const PlanFile& plan, const Timeline& timeline);
// The stages as a table, for the terminal.
std::string plan_text(const PlanFile& plan);

}  // namespace penstock
