// SPDX-License-Identifier: Apache-2.0
#include "schedule/by_rules.h"

#include <algorithm>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The classes of kinds that the orders distinguish.
enum Class { kForward, kBackward, kWeight, kClasses };

Class class_of(Kind kind) {
  if (kind == Kind::F) return kForward;
  return kind == Kind::W ? kWeight : kBackward;
}

// Micro-batches in flight: from F until B or W has ended, and until B or I has.
struct InFlight {
  std::int32_t live = 0, open = 0;
};

// A stage on an actor, for the micro-batches of one way.
struct Slot {
  using Ready = std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>>;
  std::int32_t stage = 0, actor = 0;
  std::array<Ready, kClasses> ready;  // micro-batches
  InFlight in_flight;
  std::vector<std::int64_t> most;  // of each limit
};

struct Actor {
  std::vector<std::size_t> slots;
  Kind last_turn = Kind::W;   // of the kinds that take turns,
  std::int64_t in_a_row = 0;  // and how many of it
  std::int64_t forwards_left = 0;
  bool backward_started = false;
  InFlight in_flight;
};

class RulesPolicy {
 public:
  RulesPolicy(const EngineRules& rules, const EngineWork& work) : rules_(rules), work_(work), actors_(at(work.actor_count)) {
    const std::int32_t ways = static_cast<std::int32_t>(work.actors.size());
    for (std::int32_t way = 0; way < ways; ++way) {
      for (std::int32_t s = 0; s < std::ssize(work.actors[way]); ++s) {
        Slot& slot = slots_.emplace_back();
        slot.stage = s;
        slot.actor = work.actors[way][s];
        for (const EngineLimit& limit : rules.limits) slot.most.push_back(limit.most(slot.actor, s));
        Actor& actor = actors_[slot.actor];
        actor.slots.push_back(slots_.size() - 1);
        actor.forwards_left += (work.microbatches - way + ways - 1) / ways;
      }
    }
  }

  void ready(const Action& action) { slot_of(action).ready[class_of(action.kind)].push(action.microbatch); }

  std::optional<Action> next(std::int32_t a) {
    Actor& actor = actors_[a];
    const std::optional<Action> action = choose(actor);
    if (!action) return {};
    const Class of = class_of(action->kind);
    slot_of(*action).ready[of].pop();
    if (of == kForward) {
      --actor.forwards_left;
      count(a, *action, 1, 1);
    } else if (of == kBackward) {
      actor.backward_started = true;
    }
    return action;
  }

  void ended(std::int32_t actor, const Action& action) {
    const Class of = class_of(action.kind);
    if (of == kBackward) count(actor, action, work_.split ? 0 : -1, -1);
    if (of == kWeight) count(actor, action, -1, 0);
  }

  // Some work remains, so that some of it has all that it needs: a rule forbids it.
  [[noreturn]] void stuck() const {
    std::vector<std::string> blocked;
    for (const Actor& actor : actors_) {
      for (const std::size_t s : actor.slots) {
        for (const Kind kind : {Kind::F, work_.backward(), Kind::W}) {
          const auto& ready = slots_[s].ready[class_of(kind)];
          if (!ready.empty()) blocked.push_back(why_not(slots_[s], kind, ready.top()));
        }
      }
    }
    invariant(!blocked.empty(), "list scheduling only stops where rules forbid what is ready");
    constexpr std::size_t kShown = 6;
    const std::size_t more = blocked.size() - std::min(kShown, blocked.size());
    blocked.resize(blocked.size() - more);
    if (more > 0) blocked.push_back(concat("and ", more, " more"));
    throw Error(concat(rules_.name, ": nothing may run any more"), blocked,
                "raise the limit, let the kind run in that phase, or order F so that micro-batches reach their backward");
  }

 private:
  Slot& slot_of(const Action& action) {
    return slots_[at(action.microbatch) % work_.actors.size() * work_.shape.predecessors.size() + at(action.stage)];
  }
  bool has_backward(std::int32_t stage) const { return work_.shape.has_backward[stage]; }

  void count(std::int32_t actor, const Action& action, std::int32_t live, std::int32_t open) {
    if (!has_backward(action.stage)) return;
    for (InFlight* of : {&actors_[actor].in_flight, &slot_of(action).in_flight}) {
      of->live += live;
      of->open += open;
    }
  }

  SchedulePhase phase(const Actor& actor) const {
    if (actor.forwards_left == 0) return kDrain;
    return actor.backward_started ? kSteady : kWarmUp;
  }

  std::int32_t in_flight(const Slot& slot, const EngineLimit& limit) const {
    const InFlight& of = limit.each ? slot.in_flight : actors_[slot.actor].in_flight;
    return limit.until_input ? of.open : of.live;
  }

  // The first limit that forbids a forward; as many as there are: none.
  std::size_t reached(const Slot& slot) const {
    std::size_t i = 0;
    while (i < rules_.limits.size() && in_flight(slot, rules_.limits[i]) < slot.most[i]) ++i;
    return has_backward(slot.stage) ? i : rules_.limits.size();
  }

  // Smaller is better. Within a slot the smallest micro-batch always is.
  std::array<std::int64_t, 3> key(const Slot& slot, Class of) const {
    const EngineOrder& order = rules_.orders[of];
    const std::int64_t m = slot.ready[of].top(), position = of == kForward ? slot.stage : -slot.stage;
    if (order.way == RulesOrder::Way::depth) return {-position, m, 0};
    if (order.way == RulesOrder::Way::breadth) return {position, m, 0};
    const std::int64_t size = order.size.empty() ? 1 : order.size[slot.actor];
    return {m / size, position, m % size};
  }

  std::optional<Action> best(const Actor& actor, Kind kind) const {
    const Class of = class_of(kind);
    std::optional<Action> found;
    std::array<std::int64_t, 3> least{};
    for (const std::size_t s : actor.slots) {
      const Slot& slot = slots_[s];
      if (slot.ready[of].empty() || (of == kForward && reached(slot) < rules_.limits.size())) continue;
      const auto here = key(slot, of);
      if (found && here >= least) continue;
      least = here;
      found = Action{slot.stage, kind, slot.ready[of].top()};
    }
    return found;
  }

  std::optional<Action> choose(Actor& actor) const {
    for (const std::vector<Kind>& rank : rules_.phases[phase(actor)]) {
      const auto last = std::find(rank.begin(), rank.end(), actor.last_turn);
      const auto turns = std::count(last, rank.end(), actor.last_turn);  // they stand side by side
      const std::size_t first = at(last - rank.begin() + (actor.in_a_row < turns ? 0 : turns));
      for (std::size_t i = 0; i < rank.size(); ++i) {
        const std::optional<Action> found = best(actor, rank[(first + i) % rank.size()]);
        if (!found) continue;
        if (rank.size() > 1) {
          actor.in_a_row = found->kind == actor.last_turn ? actor.in_a_row + 1 : 1;
          actor.last_turn = found->kind;
        }
        return found;
      }
    }
    return {};
  }

  // Why an action that is ready does not run.
  std::string why_not(const Slot& slot, Kind kind, std::int32_t microbatch) const {
    const std::string what = concat("actor ", slot.actor, ": ", text({slot.stage, kind, microbatch}, work_.shape.slices), " waits: ");
    const std::size_t limit = kind == Kind::F ? reached(slot) : rules_.limits.size();
    if (limit < rules_.limits.size()) {
      const EngineLimit& by = rules_.limits[limit];
      return concat(what, in_flight(slot, by), " in flight, and \"", by.text, "\" allows ", slot.most[limit]);
    }
    const char* names[] = {"warm-up", "steady", "drain"};
    return concat(what, names[phase(actors_[slot.actor])], " does not let ", name(kind), " run");
  }

  const EngineRules& rules_;
  const EngineWork& work_;
  std::vector<Slot> slots_;  // at way * stages + stage
  std::vector<Actor> actors_;
};

}  // namespace

Listed schedule_by(const EngineRules& rules, const EngineWork& work) {
  RulesPolicy policy(rules, work);
  Listed listed = run_engine(work, policy);
  listed.schedule.name = rules.name;
  return listed;
}

}  // namespace penstock
