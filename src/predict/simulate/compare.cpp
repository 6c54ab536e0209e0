// SPDX-License-Identifier: Apache-2.0
#include "simulate/compare.h"

#include <algorithm>
#include <limits>
#include <map>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

struct Total {
  std::int64_t count = 0;
  double seconds = 0;
  std::size_t order = 0;  // of its first activity
};

// Returns the group of activities that this one is compared in; empty: it is not compared.
std::string group_of(const Timeline& timeline, const Activity& activity) {
  // A host copy keeps the device's thread on one machine and goes beside it on another.
  if (activity.lane == Lane::transfer && activity.peer == activity.device) return {};
  if (activity.lane == Lane::transfer) return concat("transfer ", activity.device, " -> ", activity.peer);
  if (activity.lane == Lane::host || activity.task < 0) return {};
  return timeline.tasks[activity.task];
}

std::map<std::string, Total> totals_of(const Timeline& timeline) {
  std::map<std::string, Total> totals;
  for (std::size_t i = 0; i < timeline.activities.size(); ++i) {
    const Activity& activity = timeline.activities[i];
    const std::string group = group_of(timeline, activity);
    if (group.empty()) continue;
    Total& total = totals.try_emplace(group, Total{0, 0, i}).first->second;
    ++total.count;
    total.seconds += activity.end - activity.begin;
  }
  return totals;
}

std::vector<TaskPair> compare_tasks(const Timeline& predicted, const Timeline& measured) {
  const std::map<std::string, Total> theirs = totals_of(predicted), ours = totals_of(measured);
  const auto fail = [&](const std::string& group, std::int64_t in_predicted, std::int64_t in_measured) {
    throw Error(concat("the predicted and the measured step are of different programs: ", group, " runs ", in_predicted, " and ",
                       in_measured, " times"),
                {concat("predicted: ", predicted.title), concat("measured: ", measured.title)},
                "simulate with the configuration, and the schedule, of the run");
  };
  std::vector<std::pair<std::size_t, TaskPair>> ordered;
  for (const auto& [group, total] : ours) {
    const auto other = theirs.find(group);
    if (other == theirs.end() || other->second.count != total.count)
      fail(group, other == theirs.end() ? 0 : other->second.count, total.count);
    const auto count = static_cast<double>(total.count);
    ordered.push_back({total.order, {group, total.count, {other->second.seconds / count, total.seconds / count}}});
  }
  for (const auto& [group, total] : theirs)
    if (!ours.contains(group)) fail(group, total.count, 0);
  std::sort(ordered.begin(), ordered.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<TaskPair> out;
  for (auto& [order, pair] : ordered) out.push_back(std::move(pair));
  return out;
}

struct DeviceTimes {
  double busy = 0, first = std::numeric_limits<double>::infinity(), last = 0, peak = 0;
};

std::vector<DeviceTimes> times_of(const Timeline& timeline) {
  std::vector<DeviceTimes> out(timeline.devices.size());
  for (const Activity& activity : timeline.activities) {
    if (activity.lane != Lane::compute) continue;
    DeviceTimes& device = out[activity.device];
    device.busy += activity.end - activity.begin;
    device.first = std::min(device.first, activity.begin);
    device.last = std::max(device.last, activity.end);
  }
  for (std::size_t d = 0; d < timeline.memory.size() && d < out.size(); ++d)
    for (const MemoryPoint& point : timeline.memory[d]) out[d].peak = std::max(out[d].peak, point.total());
  for (DeviceTimes& device : out) device.first = std::min(device.first, device.last);
  return out;
}

std::string milliseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f ms", seconds * 1e3);
  return text;
}

std::string pair_text(const std::string& name, const Pair& pair, const std::string& predicted, const std::string& measured) {
  char text[160], error[32] = "-";
  if (pair.measured > 0) std::snprintf(error, sizeof error, "%+.1f %%", 100 * pair.error());
  std::snprintf(text, sizeof text, "%-28s %14s %14s %10s\n", name.c_str(), predicted.c_str(), measured.c_str(), error);
  return text;
}

std::string seconds_text(const std::string& name, const Pair& pair) {
  return pair_text(name, pair, milliseconds(pair.predicted), milliseconds(pair.measured));
}

}  // namespace

TimelineComparison compare(const Timeline& predicted, const Timeline& measured) {
  if (predicted.devices.size() != measured.devices.size())
    throw Error(concat("predicted are ", predicted.devices.size(), " devices, measured ", measured.devices.size()), {},
                "simulate with the configuration of the run");
  TimelineComparison out;
  out.makespan = {predicted.makespan, measured.makespan};
  out.tasks = compare_tasks(predicted, measured);
  const std::vector<DeviceTimes> theirs = times_of(predicted), ours = times_of(measured);
  for (std::size_t d = 0; d < ours.size(); ++d)
    out.devices.push_back({measured.devices[d],
                           {theirs[d].busy, ours[d].busy},
                           {theirs[d].first, ours[d].first},
                           {theirs[d].last, ours[d].last},
                           {theirs[d].peak, ours[d].peak}});
  return out;
}

std::string comparison_text(const TimelineComparison& comparison) {
  char header[160];
  std::snprintf(header, sizeof header, "%-28s %14s %14s %10s\n", "", "predicted", "measured", "error");
  std::string out = header + seconds_text("step", comparison.makespan);
  for (const DevicePair& device : comparison.devices) {
    out += seconds_text(device.name + ", computing", device.busy);
    out += seconds_text(device.name + ", first run at", device.first);
    out += seconds_text(device.name + ", last run until", device.last);
    out += pair_text(device.name + ", peak", device.peak, bytes_text(device.peak.predicted), bytes_text(device.peak.measured));
  }
  for (const TaskPair& task : comparison.tasks) out += seconds_text(concat(task.name, " x ", task.count), task.seconds);
  return out;
}

}  // namespace penstock
