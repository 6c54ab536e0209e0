// SPDX-License-Identifier: Apache-2.0
#include "schedule/engine.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/numbers.h"

namespace penstock {
namespace {

std::size_t unit(const EngineRun& run, const Action& action) {
  return at(action.stage) * at(run.work->microbatches) + at(action.microbatch);
}

bool has_backward(const EngineRun& run, std::int32_t stage) {
  return run.work->shape.has_backward[stage];
}

double time_of(const EngineWork& work, const Action& action) {
  return work.costs == nullptr ? 1 : work.costs->of(action.stage, action.microbatch).of(action.kind);
}

// The place of what F, the backwards and W need (EngineRun::needs).
std::size_t place_of(Kind kind) {
  return kind == Kind::F ? 0 : kind == Kind::W ? 2 : 1;
}

// One of the needs of an action has come.
void arrive(EngineRun& run, const Action& action, double time) {
  const std::size_t of = place_of(action.kind), here = unit(run, action);
  double& ready = run.ready_at[of][here];
  ready = std::max(ready, time);
  if (--run.needs[of][here] > 0) return;
  run.ready.push_back(action);
  run.awake.push_back(run.work->actor_of(action));
}

// Sends the results of the action that has ended to the stages `to`: at once on its actor, in one transfer to each other actor.
void send(EngineRun& run, std::int32_t from, const Action& action, const std::vector<std::int32_t>& to) {
  const EngineWork& work = *run.work;
  const bool forward = action.kind == Kind::F;
  const double now = run.actors[from].free;
  const auto takes = [&](std::int32_t other) { return forward || has_backward(run, other); };
  const auto parcel = [&](std::int32_t actor) {
    return std::lower_bound(run.parcels.begin(), run.parcels.end(), actor, [](const auto& p, std::int32_t a) { return p.first < a; });
  };
  run.parcels.clear();
  for (const std::int32_t other : to) {
    const std::int32_t actor = work.actor_of(other, action.microbatch);
    if (!work.arrival || !takes(other) || actor == from) continue;
    auto sent = parcel(actor);
    if (sent == run.parcels.end() || sent->first != actor) sent = run.parcels.insert(sent, {actor, 0});
    if (work.costs == nullptr) continue;
    // An output goes there once, a gradient for each stage that it is of.
    const StageCosts& of = work.costs->of(forward ? action.stage : other, action.microbatch);
    forward ? sent->second = of.forward_bytes : sent->second += of.backward_bytes;
  }
  for (auto& [actor, bytes] : run.parcels) bytes = work.arrival(from, actor, now, bytes);  // from here on a time
  for (const std::int32_t other : to) {
    if (!takes(other)) continue;
    const Action use{other, action.kind, action.microbatch};
    const std::int32_t actor = work.actor_of(other, action.microbatch);
    const auto sent = parcel(actor);
    const bool travels = sent != run.parcels.end() && sent->first == actor && sent->second > now;
    travels ? run.events.push({sent->second, false, -1, use}) : arrive(run, use, now);
  }
}

void finish(EngineRun& run, std::int32_t actor, const Action& action) {
  const EngineWork& work = *run.work;
  run.actors[actor].runs = false;
  run.awake.push_back(actor);
  run.ended.emplace_back(actor, action);
  if (action.kind == Kind::F) {
    if (has_backward(run, action.stage)) arrive(run, {action.stage, work.backward(), action.microbatch}, run.actors[actor].free);
    send(run, actor, action, run.successors[action.stage]);
  } else if (action.kind != Kind::W) {
    if (work.split) arrive(run, {action.stage, Kind::W, action.microbatch}, run.actors[actor].free);
    send(run, actor, action, work.shape.predecessors[action.stage]);
  }
}

}  // namespace

bool EngineEvent::operator>(const EngineEvent& other) const {
  const auto key = [](const EngineEvent& e) {
    return std::tuple(e.time, e.end, e.actor, e.action.stage, e.action.microbatch, e.action.kind);
  };
  return key(*this) > key(other);
}

void add_opposite_way(EngineWork& work) {
  for (std::int32_t& actor : work.actors.emplace_back(work.actors[0])) actor = work.actor_count - 1 - actor;
}

std::function<double(std::int32_t, std::int32_t, double, double)> arrivals_over(const Network& network) {
  return [&network, free = std::map<std::pair<std::int32_t, std::int32_t>, double>()](std::int32_t from, std::int32_t to, double ready,
                                                                                      double bytes) mutable {
    const Link& link = network.at(from, to);
    double& until = free[link.medium < 0 ? std::pair(from, to) : std::pair(-1, link.medium)];
    until = std::max(until, ready) + bytes / link.bandwidth;
    return until + link.latency;
  };
}

EngineRun begin_run(const EngineWork& work) {
  EngineRun run;
  run.work = &work;
  if (work.costs != nullptr)
    for (const StageCosts& stage : work.costs->stages)
      run.tolerance = std::max(run.tolerance, 1e-9 * *std::max_element(stage.time.begin(), stage.time.end()));
  run.actors.resize(at(work.actor_count));
  run.schedule.actors.resize(run.actors.size());
  run.schedule.predecessors = told_predecessors(work.shape);
  const std::vector<std::vector<std::int32_t>>& predecessors = work.shape.predecessors;
  const std::int32_t stages = static_cast<std::int32_t>(predecessors.size());
  run.successors.resize(predecessors.size());
  for (std::int32_t s = 0; s < stages; ++s)
    for (const std::int32_t before : predecessors[s]) run.successors[before].push_back(s);
  for (auto& times : run.ready_at) times.resize(predecessors.size() * at(work.microbatches), 0);
  run.needs[2].assign(run.ready_at[2].size(), 1);  // its I
  for (std::int32_t s = 0; s < stages; ++s) {
    const std::int32_t before = static_cast<std::int32_t>(predecessors[s].size());
    const auto after = std::count_if(run.successors[s].begin(), run.successors[s].end(), [&](auto t) { return has_backward(run, t); });
    run.needs[0].insert(run.needs[0].end(), at(work.microbatches), before);
    run.needs[1].insert(run.needs[1].end(), at(work.microbatches), static_cast<std::int32_t>(after) + 1);  // and its own forward
    run.left += static_cast<std::int64_t>(work.microbatches) * (has_backward(run, s) ? 2 + work.split : 1);
    for (std::int32_t m = 0; before == 0 && m < work.microbatches; ++m) run.ready.push_back({s, Kind::F, m});
  }
  for (std::int32_t a = 0; a < work.actor_count; ++a) run.awake.push_back(a);
  return run;
}

void start_action(EngineRun& run, std::int32_t actor, const Action& action) {
  EngineActor& on = run.actors[actor];
  on.free = std::max(on.free, run.ready_at[place_of(action.kind)][unit(run, action)]) + time_of(*run.work, action);
  on.runs = true;
  --run.left;
  run.schedule.actors[actor].push_back(action);
  run.events.push({on.free, true, actor, action});
}

bool advance_run(EngineRun& run) {
  run.ready.clear();
  run.ended.clear();
  run.awake.clear();
  if (run.events.empty()) return false;
  const double now = run.events.top().time + run.tolerance;
  while (!run.events.empty() && run.events.top().time <= now) {
    const EngineEvent event = run.events.top();
    run.events.pop();
    event.end ? finish(run, event.actor, event.action) : arrive(run, event.action, event.time);
  }
  return true;
}

}  // namespace penstock
