// SPDX-License-Identifier: Apache-2.0
// One engine for who runs next and when: whenever an actor is free it starts what a policy chooses of what is ready. The engine knows what
// actions need of each other, how long they take and when what they send arrives; the policy knows what an actor prefers, in which order
// it takes it, and how much may be in flight. Together they make a table.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

#include "penstock/table.h"

namespace penstock {

struct EngineWork {
  StageShape shape;
  // For each way, the actor of each stage: micro-batch m takes way m modulo ways.
  std::vector<std::vector<std::int32_t>> actors;
  std::int32_t actor_count = 1, microbatches = 1;
  bool split = false;                 // backwards are I and W
  const TableCosts* costs = nullptr;  // of F, B, I and W, finite and not negative; null: each takes 1, and bytes are 0
  // The actor of an I or W; empty: that of its stage. Where there are others, `arrival` is empty.
  std::function<std::int32_t(Kind half, std::int32_t stage, std::int32_t microbatch)> actor_of_half{};
  // When that many bytes are at `to` which may leave `from` at `ready`. It is called in the order in which they may leave. Empty: at once.
  std::function<double(std::int32_t from, std::int32_t to, double ready, double bytes)> arrival{};

  std::int32_t actor_of(std::int32_t stage, std::int32_t microbatch) const {
    return actors[static_cast<std::size_t>(microbatch) % actors.size()][stage];
  }
  std::int32_t actor_of(const Action& action) const {
    const bool is_half = (action.kind == Kind::I || action.kind == Kind::W) && actor_of_half;
    return is_half ? actor_of_half(action.kind, action.stage, action.microbatch) : actor_of(action.stage, action.microbatch);
  }
  Kind backward() const { return split ? Kind::I : Kind::B; }
};

// Adds the way that takes the actors from the other end.
void add_opposite_way(EngineWork& work);
// EngineWork::arrival: a transfer occupies its link, or the medium that links share, as in time_table. The network must outlive it.
std::function<double(std::int32_t from, std::int32_t to, double ready, double bytes)> arrivals_over(const Network& network);

struct Listed {
  Schedule schedule;
  double makespan = 0;
};

// An action that ends on an actor, or a transfer that arrives there.
struct EngineEvent {
  double time = 0;
  bool end = true;
  std::int32_t actor = -1;
  Action action;  // that has ended, or that needs what arrives

  bool operator>(const EngineEvent& other) const;
};

struct EngineActor {
  double free = 0;  // when its last action has ended, or will have
  bool runs = false;
};

// A run of the engine, as far as it has come.
struct EngineRun {
  const EngineWork* work = nullptr;
  std::vector<std::vector<std::int32_t>> successors;
  std::vector<EngineActor> actors;
  double tolerance = 0;  // what ends or arrives within so much time is known together: a multiple of rounding
  // By stage and micro-batch, for F, for the backward and for W: needs that have not come, and when the last of those that have did.
  std::array<std::vector<std::int32_t>, 3> needs;
  std::array<std::vector<double>, 3> ready_at;
  std::priority_queue<EngineEvent, std::vector<EngineEvent>, std::greater<>> events;
  std::int64_t left = 0;  // actions that have not started
  Schedule schedule;
  // The latest events, for the policy.
  std::vector<Action> ready;                             // actions that have all that they need since then
  std::vector<std::pair<std::int32_t, Action>> ended;    // by actor
  std::vector<std::int32_t> awake;                       // actors for which something has changed, some of them more than once
  std::vector<std::pair<std::int32_t, double>> parcels;  // scratch: what an action sends, by receiver: bytes, and then its arrival
};
EngineRun begin_run(const EngineWork& work);
void start_action(EngineRun& run, std::int32_t actor, const Action& action);
// Goes on to the next time at which something ends or arrives; false where nothing will.
bool advance_run(EngineRun& run);

// A policy has
//   void ready(const Action&)                             the action has all that it needs
//   void ended(std::int32_t actor, const Action&)
//   std::optional<Action> next(std::int32_t actor)        takes one of the ready actions of a free actor, or leaves it idle
//   void stuck()                                          nothing will happen any more, and not everything has run; does not return
// n actions: O(n log n), and what the policy takes.
template <class Policy>
Listed run_engine(const EngineWork& work, Policy& policy) {
  EngineRun run = begin_run(work);
  do {
    for (const Action& action : run.ready) policy.ready(action);
    for (const auto& [actor, action] : run.ended) policy.ended(actor, action);
    for (const std::int32_t actor : run.awake) {
      if (run.actors[actor].runs) continue;
      if (const std::optional<Action> next = policy.next(actor)) start_action(run, actor, *next);
    }
  } while (advance_run(run));
  if (run.left > 0) policy.stuck();
  double makespan = 0;
  for (const EngineActor& actor : run.actors) makespan = std::max(makespan, actor.free);
  return {std::move(run.schedule), makespan};
}

}  // namespace penstock
