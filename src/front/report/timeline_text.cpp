// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_text.h"

#include <algorithm>

#include "base/text.h"
#include "report/table.h"
#include "report/timeline_parts.h"

namespace penstock {
namespace {

// Numbers of the 256 terminal colours nearest to the looks'.
constexpr std::array<int, kLooks> kTerminalColours = {117, 214, 227, 36, 166, 175, 67, 248, 187};
constexpr const char* kBars[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::string_view kMemoryName = "  memory";

// The scale that all timelines share.
struct Scale {
  double end = 0;
  double per_column = 1;
  double memory = 0;  // the largest peak
  std::size_t names = kMemoryName.size();
};

Scale scale_of(const std::vector<Timeline>& timelines, const TimelineTextOptions& options) {
  Scale scale;
  for (const Timeline& timeline : timelines) {
    scale.end = std::max(scale.end, end_of(timeline));
    for (const std::string& device : timeline.devices) scale.names = std::max(scale.names, printable(device).size());
    for (const auto& memory : timeline.memory)
      if (const MemoryPoint* peak = peak_of(memory)) scale.memory = std::max(scale.memory, peak->total());
  }
  scale.per_column = scale.end / options.columns;
  return scale;
}

// Computing hides everything else: a column shows a transfer only where its receiver does nothing else.
std::vector<int> row_looks(const std::vector<const Activity*>& compute, const std::vector<const Activity*>& host,
                           const std::vector<const Activity*>& incoming, const Scale& scale, std::size_t columns) {
  std::vector<int> row = dominant_looks(compute, scale.per_column, columns);
  for (const auto* below : {&host, &incoming}) {
    const std::vector<int> looks_below = dominant_looks(*below, scale.per_column, columns);
    for (std::size_t i = 0; i < columns; ++i)
      if (row[i] < 0) row[i] = looks_below[i];
  }
  return row;
}

std::string row_text(const std::vector<int>& row, bool colour) {
  std::string out;
  int now = -1;
  for (int look : row) {
    if (colour && look != now) out += look < 0 ? "\033[0m" : concat("\033[30;48;5;", kTerminalColours[static_cast<std::size_t>(look)], "m");
    now = look;
    out += look < 0 ? '.' : looks[static_cast<std::size_t>(look)].letter;
  }
  return colour && now >= 0 ? out + "\033[0m" : out;
}

std::string memory_text(const std::vector<MemoryPoint>& memory, const Scale& scale, std::size_t columns, bool seconds) {
  std::string out;
  for (const MemoryPoint* point : memory_by_column(memory, scale.per_column, columns)) {
    const double share = point == nullptr || scale.memory == 0 ? 0 : point->total() / scale.memory;
    out += kBars[share == 0 ? 0 : std::clamp(static_cast<int>(share * 8 + 0.5), 1, 8)];
  }
  const MemoryPoint* peak = peak_of(memory);
  return concat(out, " peak ", amount_text(peak->total(), seconds), " at ", time_text(peak->time, seconds));
}

std::string axis_text(const Scale& scale, std::size_t columns, bool seconds) {
  const TimeAxis axis = time_axis(scale.end, std::max(1, static_cast<int>(columns) / 16), seconds);
  std::string out;
  for (int i = 0; i * axis.step <= scale.end && out.size() < columns; ++i) {
    out.resize(std::max(out.size(), static_cast<std::size_t>(i * axis.step / scale.per_column)), ' ');
    out += "|" + axis.text(i * axis.step) + " ";
  }
  return std::string(trim(out));
}

std::string legend_text(const std::vector<Timeline>& timelines, bool colour) {
  std::string out;
  for (std::size_t look = 0; look < kLooks; ++look)
    if (std::any_of(timelines.begin(), timelines.end(), [&](const Timeline& timeline) { return looks_in(timeline)[look]; }))
      out += concat(row_text({static_cast<int>(look)}, colour), " ", looks[look].meaning, "   ");
  return out + ". nothing\n";
}

std::string rows_text(const Timeline& timeline, const Scale& scale, const TimelineTextOptions& options) {
  const std::size_t columns = options.columns;
  const auto compute = by_device(timeline, Lane::compute), host = by_device(timeline, Lane::host);
  std::vector<std::vector<const Activity*>> incoming(timeline.devices.size());
  for (const Activity& activity : timeline.activities)
    if (activity.lane == Lane::transfer) incoming[activity.peer].push_back(&activity);
  const auto named = [&](const std::string& name) { return name + std::string(scale.names - name.size(), ' ') + " "; };
  std::string out;
  for (std::size_t device = 0; device < timeline.devices.size(); ++device) {
    const std::vector<int> row = row_looks(compute[device], host[device], incoming[device], scale, columns);
    out += concat(named(printable(timeline.devices[device])), row_text(row, options.colour), "\n");
    if (device < timeline.memory.size() && !timeline.memory[device].empty())
      out += concat(named(std::string(kMemoryName)), memory_text(timeline.memory[device], scale, columns, timeline.seconds), "\n");
  }
  return out;
}

}  // namespace

std::string timeline_text(const std::vector<Timeline>& timelines, const TimelineTextOptions& options) {
  const Scale scale = scale_of(timelines, options);
  const bool seconds = timelines.empty() || timelines.front().seconds;
  std::string out;
  for (const Timeline& timeline : timelines)
    out +=
        concat(printable(timeline.title), ": ", time_text(timeline.makespan, timeline.seconds), "\n", rows_text(timeline, scale, options));
  return concat(out, std::string(scale.names + 1, ' '), axis_text(scale, static_cast<std::size_t>(options.columns), seconds), "\n",
                legend_text(timelines, options.colour));
}

std::string explanation_text(const Timeline& timeline, const Explanation& explanation) {
  std::vector<std::vector<std::string>> rows;
  const auto text = [&](double time) { return time_text(time, timeline.seconds); };
  for (std::size_t d = 0; d < explanation.idle.size(); ++d) {
    const Idle& idle = explanation.idle[d];
    rows.push_back({timeline.devices[d], text(idle.total()), text(idle.warm_up), text(idle.dependency),
                    text(idle.communication + idle.host), text(idle.drain)});
  }
  return concat(table({"", "idle", "warm-up", "for others' work", "for transfers", "drain"}, rows), "\n",
                explain_text(timeline, explanation));
}

}  // namespace penstock
