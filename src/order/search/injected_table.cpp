// SPDX-License-Identifier: Apache-2.0
#include "search/injected_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <queue>

#include "base/invariant.h"
#include "base/text.h"
#include "schedule/engine.h"

namespace penstock {
namespace {

// The engine's policy.
class Injecting {
 public:
  Injecting(const SearchProblem& problem, const std::vector<std::size_t>& order, const InjectionPolicy& policy)
      : problem_(problem), policy_(policy), actors_(at(problem.actors)), micro_batch_(order), place_(order.size()) {
    for (std::size_t place = 0; place < order.size(); ++place) place_[order[place]] = place;
  }

  void ready(const Action& action) { waiting(actors_[at(action.stage)], action.kind).push(place_[at(action.microbatch)]); }

  void ended(std::int32_t actor, const Action& action) {
    Actor& here = actors_[at(actor)];
    if (action.kind == Kind::F) return;
    if (action.kind != Kind::W) --here.ahead;
    if (action.kind != Kind::I) here.live = --here.count == 0 ? 0 : here.live - size_of(action);
  }

  std::optional<Action> next(std::int32_t actor) {
    Actor& here = actors_[at(actor)];
    const bool has_backward = !here.backward.empty(), has_weight = !here.weight.empty();
    if (has_weight && std::ssize(here.weight) > policy_.backlog) return take(actor, Kind::W);
    const bool has_forward = !here.forward.empty() && may_start(actor);
    if (!has_forward && !has_backward) return has_weight ? std::optional(take(actor, Kind::W)) : std::nullopt;
    bool forward = has_forward;
    if (has_forward && has_backward)
      forward = policy_.prefer == InjectionPolicy::Prefer::in_turn ? !here.was_forward : policy_.prefer == InjectionPolicy::Prefer::forward;
    return take(actor, forward ? Kind::F : policy_.split ? Kind::I : Kind::B);
  }

  void stuck() { invariant(false, "tables by injection finish"); }

 private:
  // Places in the order of injection, the first of them on top.
  using Waiting = std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>>;
  struct Actor {
    Waiting forward, backward, weight;
    std::int64_t ahead = 0, count = 0;  // micro-batches that have not come back, and that live
    double live = 0;
    bool was_forward = false;
  };

  static Waiting& waiting(Actor& actor, Kind kind) {
    return kind == Kind::F ? actor.forward : kind == Kind::W ? actor.weight : actor.backward;
  }
  double size_of(const Action& action) const { return problem_.costs.of(action.stage, action.microbatch).live; }

  Action of(std::int32_t actor, Kind kind, std::size_t place) const {
    return {actor, kind, static_cast<std::int32_t>(micro_batch_[place])};
  }

  bool may_start(std::int32_t actor) const {
    constexpr double kRounding = 1e-12;
    const Actor& here = actors_[at(actor)];
    const double most = std::ceil(policy_.ahead * static_cast<double>(problem_.actors - actor));
    return static_cast<double>(here.ahead) < most &&
           here.live + size_of(of(actor, Kind::F, here.forward.top())) <= problem_.memory_limit * (1 + kRounding);
  }

  Action take(std::int32_t actor, Kind kind) {
    Actor& here = actors_[at(actor)];
    Waiting& from = waiting(here, kind);
    const Action action = of(actor, kind, from.top());
    from.pop();
    if (kind != Kind::W) here.was_forward = kind == Kind::F;
    if (kind == Kind::F) {
      ++here.ahead;
      ++here.count;
      here.live += size_of(action);
    }
    return action;
  }

  const SearchProblem& problem_;
  const InjectionPolicy& policy_;
  std::vector<Actor> actors_;
  const std::vector<std::size_t>& micro_batch_;  // by place
  std::vector<std::size_t> place_;               // by micro-batch
};

}  // namespace

std::string text(const InjectionPolicy& policy) {
  constexpr std::array kPrefer = {"backward first", "forward first", "in turn"};
  return concat("injection (", kPrefer[static_cast<std::size_t>(policy.prefer)],
                policy.ahead < kInfinity ? concat(", ahead ", number(policy.ahead)) : "",
                policy.split ? concat(", W behind by ", policy.backlog) : "", ")");
}

std::vector<InjectionPolicy> injection_policies(bool whole, bool split) {
  constexpr int kAll = 1 << 30;
  std::vector<InjectionPolicy> out;
  for (const auto prefer : {InjectionPolicy::Prefer::backward, InjectionPolicy::Prefer::in_turn, InjectionPolicy::Prefer::forward}) {
    for (const double ahead : {1.0, 1.5, 2.0, kInfinity}) {
      if (whole) out.push_back({.prefer = prefer, .ahead = ahead});
      for (const int backlog : {1, 2, kAll})
        if (split) out.push_back({.prefer = prefer, .split = true, .ahead = ahead, .backlog = backlog});
    }
  }
  return out;
}

Schedule injected_table(const SearchProblem& problem, const std::vector<std::size_t>& order, const InjectionPolicy& policy) {
  EngineWork work{.shape = problem.shape,
                  .actors = {std::vector<std::int32_t>(at(problem.actors))},
                  .actor_count = problem.actors,
                  .microbatches = problem.microbatches,
                  .split = policy.split,
                  .costs = &problem.costs,
                  .arrival = arrivals_over(problem.network)};
  for (std::int32_t actor = 0; actor < problem.actors; ++actor) work.actors[0][at(actor)] = actor;
  Injecting injecting(problem, order, policy);
  Schedule schedule = run_engine(work, injecting).schedule;
  schedule.name = "injected";
  return schedule;
}

}  // namespace penstock
