// SPDX-License-Identifier: Apache-2.0
#include "report/plan_page.h"

#include "base/text.h"
#include "cost/evaluate.h"
#include "report/plan_svg.h"
#include "report/timeline_json.h"

namespace penstock {
namespace {

constexpr std::size_t kMostActivities = 20000;  // of a timeline that a plan's file holds

}  // namespace

void add_timeline(PlannedModel& planned) {
  if (planned.plan.degrees || !planned.file.timeline.empty()) return;
  const Timeline timeline = timeline_of(planned.problem, planned.plan);
  if (timeline.activities.size() <= kMostActivities) planned.file.timeline = concat("{\"penstock\":", timeline_data(timeline), "}");
}

std::string plan_page(const PlanFile& plan, const std::string& title, const std::vector<PageSection>& sections) {
  Page page{title, {}, sections, plan_svg(plan)};
  if (std::optional<Timeline> timeline = timeline_in(plan)) page.timelines.push_back(std::move(*timeline));
  if (!page.timelines.empty() && page.timelines[0].devices.size() == plan.stages.size())
    for (const PlanFile::Stage& stage : plan.stages) page.peaks.push_back(stage.bytes);  // a row of the step is a stage
  if (title.empty()) page.title = page.timelines.empty() ? plan.model : page.timelines[0].title;
  return timeline_html(page);
}

}  // namespace penstock
