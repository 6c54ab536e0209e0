// SPDX-License-Identifier: Apache-2.0
#include "profile/recorded_batches.h"

#include <algorithm>

#include "base/text.h"
#include "profile/measured.h"

namespace penstock {
namespace {

Timeline predicted_timeline(const BatchStep& step) {
  const Schedule& schedule = step.plan.schedule;
  const StageShape shape = shape_of(schedule);
  const TableTime time = time_table(schedule, shape, step.costs, {.network = step.network, .record = true});
  Timeline timeline = timeline_of(schedule, shape, step.costs, time);
  timeline.seconds = true;
  timeline.makespan = step.predicted;
  for (std::size_t a = 0; a < timeline.devices.size(); ++a) timeline.devices[a] = concat("device ", a);
  return timeline;
}

}  // namespace

namespace {

// The table's slices are numbered in as many of each stage as the step with the most has.
void number_in(std::int32_t slices, Timeline& timeline) {
  for (Activity& activity : timeline.activities)
    if (activity.stage >= 0) activity.stage = number_of(part_of(activity.stage, timeline.slices), slices);
  timeline.slices = slices;
}

// The activity that ends last, of those from `first` on; -1: there are none.
std::int64_t last_to_end(const std::vector<Activity>& activities, std::int64_t first) {
  const auto last =
      std::max_element(activities.begin() + first, activities.end(), [](const Activity& a, const Activity& b) { return a.end < b.end; });
  return last == activities.end() ? -1 : last - activities.begin();
}

}  // namespace

Timeline joined(const std::vector<Timeline>& steps, const std::string& title) {
  Timeline out{.title = title, .seconds = steps[0].seconds, .devices = steps[0].devices, .tasks = {}, .activities = {}, .memory = {}};
  out.memory.resize(out.devices.size());
  for (const Timeline& step : steps) out.slices = std::max(out.slices, step.slices);
  std::int64_t before = -1;  // what a step's first activities waited for: the end of the step before
  for (Timeline step : steps) {
    number_in(out.slices, step);
    const auto first_task = static_cast<std::int32_t>(out.tasks.size());
    const auto first = static_cast<std::int64_t>(out.activities.size());
    out.tasks.insert(out.tasks.end(), step.tasks.begin(), step.tasks.end());
    for (Activity activity : step.activities) {
      activity.begin += out.makespan;
      activity.end += out.makespan;
      if (activity.task >= 0) activity.task += first_task;
      activity.cause = activity.cause >= 0 ? activity.cause + first : before;
      out.activities.push_back(activity);
    }
    for (std::size_t d = 0; d < step.memory.size(); ++d) {
      for (MemoryPoint point : step.memory[d]) {
        point.time += out.makespan;
        out.memory[d].push_back(point);
      }
    }
    before = last_to_end(out.activities, first);
    out.makespan += step.makespan;
  }
  return out;
}

std::vector<Timeline> timelines_of(const std::vector<RecordedBatch>& steps) {
  std::vector<Timeline> predicted, measured, out;
  for (const RecordedBatch& step : steps) {
    if (step.batch.predicted > 0 && !step.batch.plan.loads.empty()) predicted.push_back(predicted_timeline(step.batch));
    measured.push_back(timeline_of(*step.batch.program, step.result, ""));
    measured.back().makespan = step.result.seconds;
    measured.back().slices = step.batch.plan.schedule.slices;
  }
  const std::string which = concat("steps ", steps.front().step, " to ", steps.back().step);
  if (predicted.size() == steps.size()) out.push_back(joined(predicted, concat("predicted: ", which)));
  out.push_back(joined(measured, concat("measured: ", which)));
  return out;
}

}  // namespace penstock
