// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_difference.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "report/table.h"
#include "report/timeline_parts.h"
#include "simulate/explain.h"

namespace penstock {
namespace {

std::vector<KindDifference> kinds_of(const Timeline& first, const Timeline& second) {
  std::map<std::pair<std::size_t, std::int32_t>, BothFigures> times;  // by look and stage, over a stage's slices
  const auto add = [&](const Timeline& timeline, double BothFigures::* side) {
    for (const Activity& activity : timeline.activities) {
      const std::int32_t stage = activity.stage < 0 ? -1 : part_of(activity.stage, timeline.slices, timeline.blocks).stage;
      times[{look_of(activity), stage}].*side += activity.end - activity.begin;
    }
  };
  add(first, &BothFigures::first);
  add(second, &BothFigures::second);
  std::vector<KindDifference> out;
  for (const auto& [key, time] : times) out.push_back({std::string(looks[key.first].meaning), key.second, time});
  return out;
}

double highest_memory(const Timeline& timeline, std::size_t device) {
  const MemoryPoint* peak = device < timeline.memory.size() ? peak_of(timeline.memory[device]) : nullptr;
  return peak == nullptr ? 0 : peak->total();
}

std::string name_of_row(const Timeline& timeline, std::size_t device) {
  return device < timeline.devices.size() ? timeline.devices[device] : "none";
}

std::vector<PeakDifference> peaks_of(const Timeline& first, const Timeline& second) {
  std::vector<PeakDifference> out;
  for (std::size_t device = 0; device < std::max(first.memory.size(), second.memory.size()); ++device) {
    const std::string one = name_of_row(first, device), other = name_of_row(second, device);
    out.push_back({one == other ? one : concat(one, " | ", other), {highest_memory(first, device), highest_memory(second, device)}});
  }
  return out;
}

std::string other_devices(const Timeline& first, const Timeline& second) {
  if (first.devices == second.devices) return "";
  const auto count = [](const Timeline& timeline) { return counted(static_cast<std::int64_t>(timeline.devices.size()), "device"); };
  if (first.devices.size() == second.devices.size())
    return concat("Their devices have other names: ", join(first.devices, ", "), "; and ", join(second.devices, ", "),
                  ". Rows at the same place stand beside each other.");
  return concat("They have other devices: A has ", count(first), ", B ", count(second), ". Times are sums over all devices of each.");
}

// "+12.5 %" of the first; "-" where there is no first.
std::string percent_text(const BothFigures& figures) {
  if (figures.first == 0) return "-";
  return concat(figures.difference() >= 0 ? "+" : "", fixed(100 * figures.difference() / figures.first, 1), " %");
}

// A row of a table: A, B, and the difference in both forms.
template <class Text>
std::vector<std::string> row_of(std::vector<std::string> names, const BothFigures& figures, Text&& text) {
  const double difference = figures.difference();
  names.insert(names.end(), {text(figures.first), text(figures.second), concat(difference < 0 ? "-" : "+", text(std::abs(difference))),
                             percent_text(figures)});
  return names;
}

}  // namespace

TimelineDifference difference(const Timeline& first, const Timeline& second) {
  if (first.seconds != second.seconds)
    throw Error(concat(quote(first.title), " and ", quote(second.title), " have no difference: one is in seconds, the other is not"), {},
                "simulate both with measured costs, or both with costs of a table");
  return {first.seconds,
          first.title,
          second.title,
          {first.makespan, second.makespan},
          {explain(first).bubble, explain(second).bubble},
          kinds_of(first, second),
          peaks_of(first, second),
          other_devices(first, second)};
}

std::string difference_text(const TimelineDifference& difference) {
  const auto time = [&](double value) { return time_text(value, difference.seconds); };
  const auto amount = [&](double value) { return amount_text(value, difference.seconds); };
  const auto share = [](double value) { return concat(fixed(100 * value, 1), " %"); };
  std::vector<std::vector<std::string>> whole = {row_of({"step"}, difference.makespan, time), row_of({"bubble"}, difference.bubble, share)};
  for (const PeakDifference& peak : difference.peaks) whole.push_back(row_of({"peak of " + peak.device}, peak.peak, amount));
  std::vector<std::vector<std::string>> kinds;
  for (const KindDifference& kind : difference.kinds)
    kinds.push_back(row_of({kind.kind, kind.stage < 0 ? "-" : std::to_string(kind.stage)}, kind.time, time));
  return concat("A: ", difference.first, "\nB: ", difference.second, "\n",
                difference.other_devices.empty() ? "" : difference.other_devices + "\n", "\n",
                table({"", "A", "B", "B - A", "of A"}, whole), "\n",
                table({"time over all devices", "stage", "A", "B", "B - A", "of A"}, kinds));
}

}  // namespace penstock
