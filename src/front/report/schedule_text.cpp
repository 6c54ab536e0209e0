// SPDX-License-Identifier: Apache-2.0
#include "report/schedule_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "base/text.h"
#include "penstock/table.h"
#include "report/table.h"

namespace penstock {
namespace {

bool one_stage_per_actor(const Schedule& schedule) {
  return std::all_of(schedule.actors.begin(), schedule.actors.end(), [](const auto& row) {
    return std::all_of(row.begin(), row.end(), [&](const Action& action) { return action.stage == row.front().stage; });
  });
}

std::string label(const Schedule& schedule, const Action& action, bool with_stage) {
  const std::string whole = text(action, schedule.slices, schedule.blocks);
  return with_stage ? whole : whole.substr(std::to_string(action.stage).size());
}

// A row such as "F0 .  B0--- ". Each slot is `width` characters, the last of them a space.
std::string draw_row(const Schedule& schedule, const TableTime& time, std::size_t actor, std::size_t width, bool with_stage) {
  const std::vector<Action>& row = schedule.actors[actor];
  std::string out;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t start = static_cast<std::size_t>(std::lround(time.start[actor][i])) * width;
    const std::size_t end = static_cast<std::size_t>(std::lround(time.end[actor][i])) * width;
    if (start == end) continue;
    while (out.size() < start) out += "." + std::string(width - 1, ' ');
    out += label(schedule, row[i], with_stage);
    out.resize(end - 1, end - start > width ? '-' : ' ');
    out += ' ';
  }
  return std::string(trim(out));
}

}  // namespace

std::string draw(const Schedule& schedule, const StageShape& shape) {
  const TableTime time = time_table(schedule, shape, uniform_costs(schedule));
  const bool with_stage = !one_stage_per_actor(schedule);
  std::size_t longest = 1;  // longest text of the actions that are drawn
  for (std::size_t a = 0; a < schedule.actors.size(); ++a)
    for (std::size_t i = 0; i < schedule.actors[a].size(); ++i)
      if (time.end[a][i] > time.start[a][i]) longest = std::max(longest, label(schedule, schedule.actors[a][i], with_stage).size());
  const std::size_t digits = std::to_string(schedule.actors.size() - 1).size();
  std::string out;
  for (std::size_t a = 0; a < schedule.actors.size(); ++a) {
    const std::string number = std::to_string(a);
    const std::string drawn = draw_row(schedule, time, a, longest + 1, with_stage);
    out += concat("actor ", std::string(digits - number.size(), ' '), number, drawn.empty() ? " |" : " | ", drawn, "\n");
  }
  char bubble[16];
  std::snprintf(bubble, sizeof bubble, "%.1f %%", 100 * time.bubble());
  const std::string live = join(time.peak_live, " ", [](double micro_batches) { return fixed(micro_batches, 0); });
  return out + concat("time ", std::lround(time.makespan), ", bubble ", bubble, ", live ", live, "\n");
}

}  // namespace penstock
