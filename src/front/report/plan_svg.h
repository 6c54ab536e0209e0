// SPDX-License-Identifier: Apache-2.0
// A plan as a picture: its stages, what flows between them, and the simulated step below.
#pragma once

#include <optional>
#include <string>

#include "penstock/plan_file.h"
#include "penstock/timeline.h"

namespace penstock {

// A standalone SVG of the stages from left to right. Stages stand in layers by the longest path to each, and in several rows where there
// are many. A box shows name, devices, micro-batch, times, memory, and a bar for its share of the busiest stage's time; an edge shows the
// bytes of one micro-batch. Long names take several lines. On a page the picture takes the page's colours.
// `timeline` is drawn under it.
std::string plan_svg(const PlanFile& plan, const std::optional<Timeline>& timeline = std::nullopt);
// The step's timeline that the plan's file has; none where it has none.
std::optional<Timeline> timeline_in(const PlanFile& plan);
// The stages as a table, for the terminal.
std::string plan_text(const PlanFile& plan);

}  // namespace penstock
