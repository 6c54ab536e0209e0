// SPDX-License-Identifier: Apache-2.0
// Two backbones on the same actors (DiffusionPipe, Tian et al., 2405.01248, section 4, for cascaded models): one goes down the actors,
// stages 0 to p-1, and the other one up, stages p to 2p-1, with stage p on actor p-1. They do not feed each other, so where one waits the
// other computes, as Chimera's two directions do (chimera.cpp), but that each stage has one copy and all micro-batches.
//
// The bubble is Chimera's, (p-2)F where B=F and 2(p-2)F where B=2F, once for both backbones. Both in one direction have (p-1)(F+B), and one
// behind the other twice that. Peak p micro-batches of a stage, which is half of an actor's two.
//
// Where a stage of one backbone takes longer than of the other, this order lets the longer one wait. --balance, the two times, makes orders
// by them: the same turns; what has the longest way to go first; the backbone of which an actor has most left first. The shortest is taken,
// and none is longer than the order for equal ones (tests/schedule/bidirectional_test.cpp: the least there is for 2 actors and up to 3
// micro-batches). Peak 2p micro-batches of both stages of an actor, as ever.
//
//   penstock schedule bidirectional --actors 4 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 0F2 7F0 7B0---- 7F1 7B1---- 0F3 .   0B0---- 7F2 7B2---- .   0B1---- 7F3 7B3---- 0B2---- .   .   0B3----
//   actor 1 | .   1F0 6F0 1F1 6F1 .   6B0---- 1F2 1B0---- 6F2 6B1---- 1F3 1B1---- 6F3 6B2---- 1B2---- 6B3---- 1B3----
//   actor 2 | .   5F0 2F0 5F1 2F1 .   2B0---- 5F2 5B0---- 2F2 2B1---- 5F3 5B1---- 2F3 2B2---- 5B2---- 2B3---- 5B3----
//   actor 3 | 4F0 4F1 4F2 3F0 3B0---- 3F1 3B1---- 4F3 .   4B0---- 3F2 3B2---- .   4B1---- 3F3 3B3---- 4B2---- .   .   4B3----
//   time 28, bubble 14.3 %, live 4 4 4 4
#include <algorithm>
#include <array>
#include <tuple>

#include "base/invariant.h"
#include "schedule/folded.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

enum class Urgency { way, work };

// Of what can run, an actor starts the most urgent: by how long the way is from the action to the end of its micro-batch's backward, or by
// how much an actor has left to do for the backbone. Stage k of a backbone runs 2(p-k)-1 forwards ahead.
class MostUrgent {
 public:
  MostUrgent(const EngineWork& work, const std::vector<double>& times, Urgency urgency)
      : work_(work), times_(times), urgency_(urgency), live_(work.shape.predecessors.size()), actors_(work.actor_count) {
    for (OfActor& actor : actors_) actor.left = {3 * times[0] * work.microbatches, 3 * times[1] * work.microbatches};
  }

  void ready(const Action& action) { actors_[work_.actor_of(action)].ready.push_back(action); }
  void ended(std::int32_t, const Action&) {}
  void stuck() const { invariant(false, "each stage may run ahead of the backward of those behind it"); }

  std::optional<Action> next(std::int32_t a) {
    OfActor& actor = actors_[a];
    const auto rank = [&](const Action& action) {
      return std::tuple(may_run(action), urgency(actor, action), action.kind == Kind::B, -action.microbatch);
    };
    const auto best = std::ranges::max_element(actor.ready, {}, rank);
    if (best == actor.ready.end() || !may_run(*best)) return {};
    const Action action = *best;
    actor.ready.erase(best);
    actor.left[backbone(action)] -= time(action);
    live_[action.stage] += action.kind == Kind::F ? 1 : -1;
    return action;
  }

 private:
  struct OfActor {
    std::vector<Action> ready{};
    std::array<double, 2> left{};  // by backbone
  };

  int backbone(const Action& action) const { return action.stage / work_.actor_count; }
  int place(const Action& action) const { return action.stage % work_.actor_count; }
  double time(const Action& action) const { return times_[backbone(action)] * (action.kind == Kind::F ? 1 : 2); }
  bool may_run(const Action& action) const {
    return action.kind != Kind::F || live_[action.stage] < 2 * (work_.actor_count - place(action)) - 1;
  }
  double urgency(const OfActor& actor, const Action& action) const {
    if (urgency_ == Urgency::work) return actor.left[backbone(action)];
    const int p = work_.actor_count, ways = action.kind == Kind::F ? 3 * p - place(action) : 2 * (place(action) + 1);
    return times_[backbone(action)] * ways;
  }

  const EngineWork& work_;
  const std::vector<double>& times_;  // of a stage's forward, by backbone
  Urgency urgency_;
  std::vector<int> live_;  // by stage
  std::vector<OfActor> actors_;
};

Schedule most_urgent_first(const EngineWork& work, const std::vector<double>& times, Urgency urgency) {
  MostUrgent policy(work, times, urgency);
  return run_engine(work, policy).schedule;
}

}  // namespace

Schedule bidirectional(const ScheduleOptions& options) {
  const int p = options.actors;
  require_even_actors("bidirectional", options);
  require_two_chunks("bidirectional", options);
  EngineWork work = folded_work(p, 2, options.microbatches);
  work.shape.predecessors[static_cast<std::size_t>(p)].clear();
  Schedule best = oldest_first(work, 2 * p, 1);
  if (options.balance.empty()) return best;
  require_balance("bidirectional", options, 2, "backbones", "backbone's stages");
  TableCosts costs;
  for (int stage = 0; stage < 2 * p; ++stage) costs.stages.push_back(uniform_costs(1, {}, options.balance[stage / p]).stages[0]);
  work.costs = &costs;
  const auto time_of = [&](const Schedule& order) { return time_table(order, work.shape, costs).makespan; };
  for (Schedule& order : std::array{oldest_first(work, 2 * p, 1), most_urgent_first(work, options.balance, Urgency::way),
                                    most_urgent_first(work, options.balance, Urgency::work)})
    if (time_of(order) < time_of(best)) best = std::move(order);
  return best;
}

}  // namespace penstock
