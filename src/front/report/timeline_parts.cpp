// SPDX-License-Identifier: Apache-2.0
#include "report/timeline_parts.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "report/table.h"

namespace penstock {

const std::array<Look, kLooks> looks = {{
    {"F", 'F', "#56b4e9", "#3c7ea3", "", "forward"},
    {"B", 'B', "#e69f00", "#a16f00", "", "backward"},
    {"I", 'I', "#f0e442", "#827b24", "M1.5 2h1M5.5 6h1", "input gradients"},
    {"W", 'W', "#009e73", "#00795a", "M-1 1L1 -1M0 8L8 0M7 9L9 7", "weight gradients"},
    {"R", 'R', "#d55e00", "#a84a00", "M0 0L8 8M0 8L8 0", "recomputation"},
    {"update", 'U', "#cc79a7", "#8f5476", "M0 2H8M0 6H8", "before and after the loop"},
    {"transfer", '~', "#0072b2", "#0072b2", "", "communication"},
    {"host", '-', "#999999", "#777777", "", "starting transfers, data"},
    {"frozen", 'z', "#d8c3a5", "#847765", "M3 4h2", "frozen layers"},
}};

const std::array<MemoryColour, kMemoryClasses> memory_colours = {{{"#1d3a66", "#456aab"},
                                                                  {"#5b8fc7", "#b8d4f2"},
                                                                  {"#44286b", "#8358bb"},
                                                                  {"#a27fc9", "#e0cdf7"},
                                                                  {"#0f4a3c", "#2d7a65"},
                                                                  {"#3f9c86", "#a8e0cf"}}};

std::size_t look_of(Kind kind) {
  switch (kind) {
    case Kind::F:
      return 0;
    case Kind::B:
      return 1;
    case Kind::I:
      return 2;
    case Kind::W:
      return 3;
    case Kind::R:
      return 4;
    case Kind::U:
      return 5;
    default:
      return kTransferLook;
  }
}

std::size_t look_of(const Activity& activity) {
  if (activity.lane == Lane::transfer) return kTransferLook;
  if (activity.lane == Lane::host) return kHostLook;
  if (activity.frozen) return kFrozenLook;
  return look_of(activity.action ? activity.kind : Kind::U);
}

std::array<bool, kLooks> looks_in(const Timeline& timeline) {
  std::array<bool, kLooks> out{};
  for (const Activity& activity : timeline.activities) out[look_of(activity)] = true;
  return out;
}

std::vector<std::vector<std::int32_t>> stages_by_device(const Timeline& timeline) {
  std::vector<std::set<std::int32_t>> stages(timeline.devices.size());
  for (const Activity& activity : timeline.activities)
    if (activity.lane == Lane::compute && activity.action && activity.stage >= 0) stages[activity.device].insert(activity.stage);
  std::vector<std::vector<std::int32_t>> out;
  for (const auto& device : stages) out.emplace_back(device.begin(), device.end());
  return out;
}

std::size_t most_chunks(const std::vector<std::vector<std::int32_t>>& stages) {
  std::size_t most = 1;
  for (const auto& device : stages) most = std::max(most, device.size());
  return most;
}

std::size_t chunk_of(const std::vector<std::vector<std::int32_t>>& stages, const Activity& activity) {
  const auto& device = stages[activity.device];
  if (activity.lane != Lane::compute || !activity.action || activity.stage < 0) return 0;
  return static_cast<std::size_t>(std::lower_bound(device.begin(), device.end(), activity.stage) - device.begin());
}

std::vector<double> chunk_shades(std::size_t chunks) {
  constexpr double kPalest = 0.65;
  std::vector<double> out(chunks, 0);
  for (std::size_t chunk = 1; chunk < chunks; ++chunk)
    out[chunk] = kPalest * (chunks == 2 ? 0.75 : static_cast<double>(chunk) / static_cast<double>(chunks - 1));
  return out;
}

std::string in_shade(std::string_view colour, double shade) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out = "#";
  for (const std::size_t from : {1, 3, 5}) {
    const double byte = std::stoi(std::string(colour.substr(from, 2)), nullptr, 16);
    const auto mixed = static_cast<std::size_t>(std::lround(byte + shade * (255 - byte)));
    out += {kDigits[mixed / 16], kDigits[mixed % 16]};
  }
  return out;
}

double end_of(const Timeline& timeline) {
  double end = timeline.makespan;
  for (const Activity& activity : timeline.activities) end = std::max(end, activity.end);
  for (const auto& memory : timeline.memory)
    if (!memory.empty()) end = std::max(end, memory.back().time);
  return end > 0 ? end : 1;
}

std::vector<std::vector<const Activity*>> by_device(const Timeline& timeline, Lane lane) {
  std::vector<std::vector<const Activity*>> out(timeline.devices.size());
  for (const Activity& activity : timeline.activities)
    if (activity.lane == lane) out[activity.device].push_back(&activity);
  for (auto& activities : out)
    std::stable_sort(activities.begin(), activities.end(), [](const Activity* a, const Activity* b) { return a->begin < b->begin; });
  return out;
}

std::vector<int> dominant_looks(const std::vector<const Activity*>& activities, double per_column, std::size_t columns) {
  std::vector<std::array<double, kLooks>> taken(columns);
  for (const Activity* activity : activities) {
    const double begin = activity->begin / per_column, end = activity->end / per_column;
    for (auto column = static_cast<std::size_t>(begin); column < columns && static_cast<double>(column) < end; ++column)
      taken[column][look_of(*activity)] += std::min(end, static_cast<double>(column + 1)) - std::max(begin, static_cast<double>(column));
  }
  std::vector<int> out(columns, -1);
  for (std::size_t column = 0; column < columns; ++column) {
    const auto most = std::max_element(taken[column].begin(), taken[column].end());
    if (*most > 0) out[column] = static_cast<int>(most - taken[column].begin());
  }
  return out;
}

std::vector<const MemoryPoint*> memory_by_column(const std::vector<MemoryPoint>& memory, double per_column, std::size_t columns) {
  std::vector<const MemoryPoint*> out(columns, nullptr);
  std::size_t next = 0;
  const MemoryPoint* now = nullptr;
  for (std::size_t column = 0; column < columns; ++column) {
    out[column] = now;
    for (; next < memory.size() && memory[next].time < static_cast<double>(column + 1) * per_column; ++next) {
      now = &memory[next];
      if (out[column] == nullptr || now->total() > out[column]->total()) out[column] = now;
    }
  }
  return out;
}

const MemoryPoint* peak_of(const std::vector<MemoryPoint>& memory) {
  const auto peak =
      std::max_element(memory.begin(), memory.end(), [](const MemoryPoint& a, const MemoryPoint& b) { return a.total() < b.total(); });
  return peak == memory.end() ? nullptr : &*peak;
}

std::string amount_text(double amount, bool seconds) {
  return seconds ? bytes_text(amount) : short_decimal(amount, 4) + (amount == 1 ? " micro-batch" : " micro-batches");
}

std::string TimeAxis::text(double time) const {
  return fixed(time / unit, digits) + suffix;
}

TimeAxis time_axis(double end, int count, bool seconds) {
  const double rough = end / count, power = std::pow(10, std::floor(std::log10(rough)));
  TimeAxis axis;
  for (double factor : {1.0, 2.0, 5.0, 10.0}) {
    axis.step = factor * power;
    if (axis.step >= rough * (1 - 1e-9)) break;
  }
  const TimeUnit unit = time_unit(end, seconds);
  axis.unit = unit.size;
  axis.suffix = unit.suffix;
  axis.digits = std::clamp(-static_cast<int>(std::floor(std::log10(axis.step / unit.size) + 1e-9)), 0, 12);
  return axis;
}

std::string escape_markup(std::string_view text) {
  std::string out;
  for (char c : printable(text)) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string open_svg(const std::string& width, const std::string& height, std::string_view title, std::string_view description) {
  return concat("<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" viewBox=\"0 0 ", width, " ", height, "\" width=\"", width,
                "\" height=\"", height, "\">\n<title>", escape_markup(title), "</title>\n<desc>", escape_markup(description), "</desc>\n");
}

}  // namespace penstock
