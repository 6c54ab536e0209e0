// SPDX-License-Identifier: Apache-2.0
#include "schedule/folded.h"

#include "base/text.h"
#include "penstock/error.h"
#include "schedule/by_rules.h"

namespace penstock {

EngineWork folded_work(int actors, int chunks, int microbatches) {
  EngineWork work{.shape = chain(actors * chunks), .actors = {{}}, .actor_count = actors, .microbatches = microbatches};
  for (int stage = 0; stage < actors * chunks; ++stage) work.actors[0].push_back(folded_actor(actors, stage));
  return work;
}

Schedule oldest_first(const EngineWork& work, int live_limit, int turn) {
  std::vector<Kind> turns(turn, Kind::B);
  turns.insert(turns.end(), turns.size(), Kind::F);
  EngineRules rules;
  rules.phases.fill(Preference{turns});
  rules.limits.push_back({.most = [live_limit](std::int32_t, std::int32_t) { return live_limit; }});
  return schedule_by(rules, work).schedule;
}

Schedule in_whole_units(const ScheduleOptions& options, int unit, const std::function<Schedule(int microbatches)>& make) {
  Schedule schedule = make((options.microbatches + unit - 1) / unit * unit);
  for (auto& row : schedule.actors) std::erase_if(row, [&](const Action& action) { return action.microbatch >= options.microbatches; });
  return schedule;
}

void require_two_chunks(std::string_view name, const ScheduleOptions& options) {
  if (options.chunks == 2) return;
  throw Error(concat(name, " gives each actor two stages, not ", options.chunks),
              {"its stages go down the actors and come back: actor r of p has stages r and 2p-1-r"}, "chunks 2");
}

void require_even_actors(std::string_view name, const ScheduleOptions& options) {
  if (options.actors % 2 == 0) return;
  throw Error(concat(name, " needs an even number of actors, not ", options.actors),
              {"two directions share the actors; a middle actor would hold one stage for both"},
              concat(options.actors > 1 ? concat(options.actors - 1, " or ") : std::string(), options.actors + 1, " actors"));
}

}  // namespace penstock
