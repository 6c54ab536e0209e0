// SPDX-License-Identifier: Apache-2.0
// A plan as a picture: its stages, what flows between them, and the simulated step below.
#pragma once

#include <string>

#include "penstock/plan_file.h"
#include "penstock/timeline.h"

namespace penstock {

// A standalone SVG of the stages from left to right. Stages stand in layers by the longest path to each, and in several rows where there
// are many. A box shows name, devices, micro-batch, times, memory, and a bar for its share of the busiest stage's time; an edge shows the
// bytes of one micro-batch. Long names take several lines. On a page the picture takes the page's colours.
std::string plan_svg(const PlanFile& plan);
// The same with the timeline under it.
std::string plan_svg(const PlanFile& plan, const Timeline& timeline);
// The stages as a table, for the terminal.
std::string plan_text(const PlanFile& plan);

}  // namespace penstock
