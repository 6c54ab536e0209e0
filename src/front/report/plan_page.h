// SPDX-License-Identifier: Apache-2.0
// A plan as a page: its stages, and the simulated step below.
#pragma once

#include <string>
#include <vector>

#include "penstock/plan_file.h"
#include "plan/planned_model.h"
#include "report/timeline_html.h"

namespace penstock {

// Gives the plan's file the simulated step, unless it has one or would have very many activities. Plans of equal groups have none.
void add_timeline(PlannedModel& planned);

// HTML that needs nothing else. title: "" is the timeline's, or the model's name. Sections stand below.
std::string plan_page(const PlanFile& plan, const std::string& title = "", const std::vector<PageSection>& sections = {});

}  // namespace penstock
