// SPDX-License-Identifier: Apache-2.0
#include "cli/window_text.h"

#include "base/text.h"
#include "report/table.h"
#include "schedule/versions.h"

namespace penstock {

std::string window_text(const Schedule& schedule) {
  if (schedule.steps == 1) return {};
  std::vector<std::vector<std::string>> rows;
  for (std::int32_t actor = 0; actor < std::ssize(schedule.actors); ++actor)
    rows.push_back({concat("actor ", actor), std::to_string(versions_held(schedule, actor)), std::to_string(staleness(schedule, actor))});
  return concat("\na window of ", schedule.steps, " steps:\n", table({"", "versions", "updates late"}, rows));
}

}  // namespace penstock
