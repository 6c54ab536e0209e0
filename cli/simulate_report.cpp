// SPDX-License-Identifier: Apache-2.0
// Prints the explanation of a simulated step, for people and for machines.
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "cli/simulate.h"
#include "report/table.h"

namespace penstock {
namespace {

nlohmann::json json_of(const Idle& idle) {
  return {{"warm_up", idle.warm_up},
          {"drain", idle.drain},
          {"dependency", idle.dependency},
          {"communication", idle.communication},
          {"host", idle.host}};
}

}  // namespace

nlohmann::json json_of(const Timeline& timeline, const Explanation& explanation) {
  const CriticalPath& path = explanation.path;
  nlohmann::json out = {{"text", explain_text(timeline, explanation)},
                        {"critical_path",
                         {{"compute", path.compute},
                          {"transfer", path.transfer},
                          {"host", path.host},
                          {"waiting", path.waiting},
                          {"compute_on", path.compute_on},
                          {"activities", path.activities.size()}}},
                        {"idle", nlohmann::json::array()},
                        {"changes", nlohmann::json::array()}};
  for (const Idle& idle : explanation.idle) out["idle"].push_back(json_of(idle));
  for (const Gain& gain : explanation.gains)
    out["changes"].push_back({{"change", gain.change}, {"makespan", gain.makespan}, {"saved", gain.saved}});
  return out;
}

std::string idle_table(const Timeline& timeline, const Explanation& explanation) {
  std::vector<std::vector<std::string>> rows;
  const auto text = [&](double time) { return time_text(time, timeline.seconds); };
  for (std::size_t d = 0; d < explanation.idle.size(); ++d) {
    const Idle& idle = explanation.idle[d];
    rows.push_back({timeline.devices[d], text(idle.total()), text(idle.warm_up), text(idle.dependency),
                    text(idle.communication + idle.host), text(idle.drain)});
  }
  return table({"", "idle", "warm-up", "for others' work", "for transfers", "drain"}, rows);
}

}  // namespace penstock
