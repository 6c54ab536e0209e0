// SPDX-License-Identifier: Apache-2.0
#include "report/figures_json.h"

#include <nlohmann/json.hpp>

#include "report/timeline_parts.h"
#include "schedule/versions.h"
#include "search/relieve.h"

namespace penstock {

using nlohmann::ordered_json;

ordered_json figures_json(const SimulatedTable& step) {
  const TableTime& time = step.time;
  ordered_json actors = ordered_json::array(), versions = actors, late = actors;
  for (std::size_t a = 0; a < time.busy.size(); ++a) {
    const auto actor = static_cast<std::int32_t>(a);
    versions.push_back(versions_held(step.schedule, actor));
    late.push_back(staleness(step.schedule, actor));
    actors.push_back({{"busy", time.busy[a]},
                      {"idle", time.makespan - time.busy[a]},
                      {"peak_live", time.peak_live[a]},
                      {"peak_time", time.peak_time[a]},
                      {"versions", versions[a]},
                      {"staleness", late[a]}});
  }
  return {{"kind", "table"},
          {"name", step.schedule.name},
          {"stages", step.schedule.whole_stages()},
          {"slices", step.schedule.slices},
          {"microbatches", step.schedule.microbatches()},
          {"steps", step.schedule.steps},
          {"makespan", time.makespan},
          {"bubble", time.bubble()},
          {"lower_bound", step.lower_bound()},
          {"lower_bounds", {{"busiest_device", step.busiest()}, {"critical_path", step.dependencies}}},
          {"actors", actors},
          {"busy", time.busy},
          {"peak_live", time.peak_live},
          {"versions", versions},
          {"staleness", late}};
}

ordered_json figures_json(const Timeline& timeline) {
  const Explanation explanation = explain(timeline);
  const std::vector<double> busy = compute_times(timeline);
  ordered_json actors = ordered_json::array(), peaks = actors;
  for (std::size_t d = 0; d < busy.size(); ++d) {
    const MemoryPoint* peak = d < timeline.memory.size() ? peak_of(timeline.memory[d]) : nullptr;
    peaks.push_back(peak ? ordered_json(peak->total()) : ordered_json());
    actors.push_back({{"busy", busy[d]},
                      {"idle", timeline.makespan - busy[d]},
                      {"peak_live", peaks[d]},
                      {"peak_time", peak ? ordered_json(peak->time) : ordered_json()}});
  }
  return {{"kind", "timeline"},
          {"name", timeline.title},
          {"makespan", timeline.makespan},
          {"bubble", explanation.bubble},
          {"lower_bound", explanation.busiest},
          {"lower_bounds", {{"busiest_device", explanation.busiest}}},
          {"actors", actors},
          {"busy", busy},
          {"peak_live", peaks}};
}

ordered_json figures_json(const SearchResult& found) {
  const Schedule& schedule = found.schedule;
  ordered_json out = {{"makespan", found.time.makespan},
                      {"bubble", found.time.bubble()},
                      {"lower_bound", found.lower_bound},
                      {"gap", found.gap()},
                      {"optimal", found.optimal},
                      {"found_by", found.found_by},
                      {"nodes", found.nodes},
                      {"inferred_makespan", found.inferred_time},
                      {"sends", count_of(schedule, Kind::SEND_F) + count_of(schedule, Kind::SEND_B)},
                      {"recomputed", count_of(schedule, Kind::R)},
                      {"offloaded", count_of(schedule, Kind::OFFLOAD)},
                      {"gathers", count_of(schedule, Kind::UNSHARD)},
                      {"copies", copies_of(placement_of(schedule))},
                      {"busy", found.time.busy},
                      {"peak_live", found.time.peak_live},
                      {"generator", nullptr}};
  if (!found.generator.empty()) out["generator"] = {{"name", found.generator}, {"makespan", found.generator_time}};
  return out;
}

ordered_json figures_json(const Explanation& explanation) {
  const CriticalPath& path = explanation.path;
  ordered_json out = {{"critical_path",
                       {{"compute", path.compute},
                        {"transfer", path.transfer},
                        {"host", path.host},
                        {"waiting", path.waiting},
                        {"compute_on", path.compute_on},
                        {"activities", path.activities.size()}}},
                      {"idle", ordered_json::array()},
                      {"changes", ordered_json::array()}};
  for (const Idle& idle : explanation.idle)
    out["idle"].push_back({{"warm_up", idle.warm_up},
                           {"drain", idle.drain},
                           {"dependency", idle.dependency},
                           {"communication", idle.communication},
                           {"host", idle.host}});
  for (const Gain& gain : explanation.gains)
    out["changes"].push_back({{"change", gain.change}, {"makespan", gain.makespan}, {"saved", gain.saved}});
  return out;
}

}  // namespace penstock
