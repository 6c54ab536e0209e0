#include "plan/engine.h"

#include <algorithm>
#include <map>
#include <queue>
#include <tuple>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// What the orders distinguish.
enum Class { kForward, kBackward, kWeight, kClasses };

Class class_of(Kind kind) {
  if (kind == Kind::F) return kForward;
  return kind == Kind::W ? kWeight : kBackward;
}

// Ends of actions, and arrivals of what they send.
struct Event {
  double time = 0;
  bool end = true;          // of what `actor` runs; else what stage and micro-batch need has come
  std::int32_t actor = -1;  // of an end
  bool backward = false;    // for F or backward
  std::int32_t stage = -1, microbatch = -1;

  bool operator>(const Event& other) const {
    return std::tie(time, end, actor, stage, microbatch, backward) >
           std::tie(other.time, other.end, other.actor, other.stage, other.microbatch, other.backward);
  }
};

// A stage on an actor, for the micro-batches of one way.
struct Slot {
  using Ready = std::priority_queue<std::int32_t, std::vector<std::int32_t>, std::greater<>>;
  std::int32_t stage = 0, actor = 0;
  std::array<Ready, kClasses> ready;  // micro-batches
  std::int32_t live = 0, open = 0;    // until B or W, until B or I has ended
  std::vector<std::int64_t> most;     // of each limit
};

struct Actor {
  std::vector<std::size_t> slots;
  double free = 0;  // when its last action has ended
  bool running = false;
  Kind kind = Kind::F;  // what it runs
  std::size_t slot = 0;
  std::int32_t microbatch = 0;
  Kind last_turn = Kind::W;   // of the kinds that take turns,
  std::int64_t in_a_row = 0;  // and how many of it
  std::int64_t forwards_left = 0, left = 0;
  bool backward_started = false;
  std::int32_t live = 0, open = 0;
};

// What is to run next.
struct Choice {
  Kind kind = Kind::F;
  std::size_t slot = 0;
};

class Engine {
 public:
  Engine(const EngineRules& rules, const Placed& placed, std::int32_t microbatches, const TableCosts& costs, const Network& network)
      : rules_(rules), placed_(placed), microbatches_(microbatches), costs_(costs), network_(network) {
    const std::size_t stages = placed.shape.predecessors.size();
    successors_.resize(stages);
    for (std::size_t s = 0; s < stages; ++s) {
      for (const std::int32_t before : placed.shape.predecessors[s]) successors_[at(before)].push_back(static_cast<std::int32_t>(s));
    }
    make_slots();
    make_needs();
    double longest = 0;
    for (const StageCosts& stage : costs.stages) longest = std::max(longest, *std::max_element(stage.time.begin(), stage.time.end()));
    tolerance_ = 1e-9 * longest;
    schedule_.name = rules.name;
    schedule_.actors.resize(at(placed.actor_count));
  }

  Listed run() {
    for (std::int32_t a = 0; a < placed_.actor_count; ++a) start_any(a);
    while (!events_.empty()) {
      // What ends at one time, but for rounding, is known together.
      const double now = events_.top().time + tolerance_;
      awake_.clear();
      while (!events_.empty() && events_.top().time <= now) {
        const Event event = events_.top();
        events_.pop();
        event.end ? finish(event.actor) : arrive(event.stage, event.microbatch, event.backward, event.time);
      }
      for (const std::int32_t actor : awake_) start_any(actor);
    }
    if (std::any_of(actors_.begin(), actors_.end(), [](const Actor& actor) { return actor.left > 0; })) fail_stuck();
    const auto earlier = [](const Actor& a, const Actor& b) { return a.free < b.free; };
    return {std::move(schedule_), std::max_element(actors_.begin(), actors_.end(), earlier)->free};
  }

 private:
  std::size_t unit(std::int32_t stage, std::int32_t m) const { return at(stage) * at(microbatches_) + at(m); }
  std::size_t slot_of(std::int32_t stage, std::int32_t m) const { return at(m) % placed_.actors.size() * successors_.size() + at(stage); }
  bool has_backward(std::int32_t stage) const { return placed_.shape.has_backward[at(stage)]; }

  void make_slots() {
    actors_.resize(at(placed_.actor_count));
    const std::int32_t ways = static_cast<std::int32_t>(placed_.actors.size()), stages = static_cast<std::int32_t>(successors_.size());
    for (std::int32_t way = 0; way < ways; ++way) {
      const std::int32_t microbatches = (microbatches_ - way + ways - 1) / ways;
      for (std::int32_t s = 0; s < stages; ++s) {
        const std::int32_t on = placed_.actors[at(way)][at(s)];
        Actor& actor = actors_[at(on)];
        actor.slots.push_back(slots_.size());
        actor.forwards_left += microbatches;
        actor.left += static_cast<std::int64_t>(microbatches) * (has_backward(s) ? 2 + rules_.split : 1);
        Slot& slot = slots_.emplace_back();
        slot.stage = s;
        slot.actor = on;
        for (const EngineLimit& limit : rules_.limits) slot.most.push_back(limit.most(on, s));
      }
    }
  }

  void make_needs() {
    const std::int32_t stages = static_cast<std::int32_t>(successors_.size());
    for (auto* of : {&needs_[0], &needs_[1]}) of->resize(at(stages) * at(microbatches_));
    for (auto* of : {&ready_[0], &ready_[1]}) of->resize(needs_[0].size(), 0);
    for (std::int32_t s = 0; s < stages; ++s) {
      const std::size_t before = placed_.shape.predecessors[at(s)].size();
      const auto after = std::count_if(successors_[at(s)].begin(), successors_[at(s)].end(), [&](auto t) { return has_backward(t); });
      for (std::int32_t m = 0; m < microbatches_; ++m) {
        needs_[0][unit(s, m)] = static_cast<std::int32_t>(before);
        needs_[1][unit(s, m)] = static_cast<std::int32_t>(after + 1);  // and its own forward
        if (before == 0) slots_[slot_of(s, m)].ready[kForward].push(m);
      }
    }
  }

  SchedulePhase phase(const Actor& actor) const {
    if (actor.forwards_left == 0) return kDrain;
    return actor.backward_started ? kSteady : kWarmUp;
  }

  std::int32_t in_flight(const Slot& slot, const EngineLimit& limit) const {
    const Actor& actor = actors_[at(slot.actor)];
    if (limit.each) return limit.until_input ? slot.open : slot.live;
    return limit.until_input ? actor.open : actor.live;
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
    const std::int64_t size = order.size[at(slot.actor)];
    return {m / size, position, m % size};
  }

  bool best(const Actor& actor, Kind kind, Choice& out) const {
    const Class of = class_of(kind);
    bool found = false;
    std::array<std::int64_t, 3> least{};
    for (const std::size_t s : actor.slots) {
      const Slot& slot = slots_[s];
      if (slot.ready[of].empty() || (of == kForward && reached(slot) < rules_.limits.size())) continue;
      const auto here = key(slot, of);
      if (found && here >= least) continue;
      found = true;
      least = here;
      out = {kind, s};
    }
    return found;
  }

  bool choose(Actor& actor, Choice& out) const {
    for (const std::vector<Kind>& rank : rules_.phases[phase(actor)]) {
      const auto last = std::find(rank.begin(), rank.end(), actor.last_turn);
      const auto turns = std::count(last, rank.end(), actor.last_turn);  // they stand side by side
      const std::size_t first = static_cast<std::size_t>(last - rank.begin() + (actor.in_a_row < turns ? 0 : turns));
      for (std::size_t i = 0; i < rank.size(); ++i) {
        if (!best(actor, rank[(first + i) % rank.size()], out)) continue;
        if (rank.size() > 1) {
          actor.in_a_row = out.kind == actor.last_turn ? actor.in_a_row + 1 : 1;
          actor.last_turn = out.kind;
        }
        return true;
      }
    }
    return false;
  }

  void start_any(std::int32_t a) {
    Actor& actor = actors_[at(a)];
    Choice next;
    if (actor.running || !choose(actor, next)) return;
    Slot& slot = slots_[next.slot];
    const Class of = class_of(next.kind);
    const std::int32_t m = slot.ready[of].top();
    slot.ready[of].pop();
    actor.running = true;
    actor.kind = next.kind;
    actor.slot = next.slot;
    actor.microbatch = m;
    if (of == kForward) {
      --actor.forwards_left;
      count(actor, slot, 1, 1);
    } else if (of == kBackward) {
      actor.backward_started = true;
    }
    schedule_.actors[at(a)].push_back({slot.stage, next.kind, m});
    const double begin = of == kWeight ? actor.free : std::max(actor.free, ready_[of][unit(slot.stage, m)]);
    actor.free = begin + costs_.stages[at(slot.stage)].time[static_cast<std::size_t>(next.kind)];
    Event end;
    end.time = actor.free;
    end.actor = a;
    events_.push(end);
  }

  void count(Actor& actor, Slot& slot, std::int32_t live, std::int32_t open) const {
    if (!has_backward(slot.stage)) return;
    actor.live += live;
    slot.live += live;
    actor.open += open;
    slot.open += open;
  }

  void finish(std::int32_t a) {
    Actor& actor = actors_[at(a)];
    Slot& slot = slots_[actor.slot];
    actor.running = false;
    --actor.left;
    awake_.push_back(a);
    const std::int32_t m = actor.microbatch;
    switch (class_of(actor.kind)) {
      case kForward:
        if (has_backward(slot.stage)) arrive(slot.stage, m, true, actor.free);
        send(actor, slot.stage, successors_[at(slot.stage)], false);
        break;
      case kBackward:
        count(actor, slot, rules_.split ? 0 : -1, -1);
        if (rules_.split) slot.ready[kWeight].push(m);
        send(actor, slot.stage, placed_.shape.predecessors[at(slot.stage)], true);
        break;
      default:
        count(actor, slot, -1, 0);
    }
  }

  // What the action that has ended makes, for the stages `to`: at once on this actor, in one transfer to each other actor.
  void send(const Actor& actor, std::int32_t stage, const std::vector<std::int32_t>& to, bool backward) {
    std::map<std::int32_t, double> parcels;  // bytes by actor
    const std::int32_t from = slots_[actor.slot].actor, m = actor.microbatch;
    const auto actor_of = [&](std::int32_t other) { return slots_[slot_of(other, m)].actor; };
    const auto takes = [&](std::int32_t other) { return !backward || has_backward(other); };
    for (const std::int32_t other : to) {
      if (!takes(other) || actor_of(other) == from) continue;
      double& bytes = parcels[actor_of(other)];
      backward ? bytes += costs_.stages[at(other)].backward_bytes : bytes = costs_.stages[at(stage)].forward_bytes;
    }
    for (auto& [receiver, bytes] : parcels) bytes = arrival(from, receiver, actor.free, bytes);  // from here on a time
    for (const std::int32_t other : to) {
      if (!takes(other)) continue;
      const auto parcel = parcels.find(actor_of(other));
      if (parcel == parcels.end() || parcel->second <= actor.free) {
        arrive(other, m, backward, actor.free);
      } else {
        events_.push({parcel->second, false, -1, backward, other, m});
      }
    }
  }

  double arrival(std::int32_t from, std::int32_t to, double time, double bytes) {
    const Link& link = network_.at(from, to);
    const std::pair<std::int32_t, std::int32_t> lane = link.medium < 0 ? std::pair(from, to) : std::pair(-1, link.medium);
    double& free = free_[lane];
    free = std::max(free, time) + bytes / link.bandwidth;
    return free + link.latency;
  }

  // One of the needs of a forward or backward is there.
  void arrive(std::int32_t stage, std::int32_t m, bool backward, double time) {
    double& ready = ready_[backward][unit(stage, m)];
    ready = std::max(ready, time);
    if (--needs_[backward][unit(stage, m)] > 0) return;
    Slot& slot = slots_[slot_of(stage, m)];
    slot.ready[backward ? kBackward : kForward].push(m);
    awake_.push_back(slot.actor);
  }

  // Some work remains, so that some of it has all that it needs: a rule forbids it.
  [[noreturn]] void fail_stuck() const {
    std::vector<std::string> blocked;
    for (const Actor& actor : actors_) {
      for (const std::size_t s : actor.slots) {
        for (const Kind kind : {Kind::F, rules_.split ? Kind::I : Kind::B, Kind::W}) {
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

  std::string why_not(const Slot& slot, Kind kind, std::int32_t m) const {
    const Actor& actor = actors_[at(slot.actor)];
    const std::string what = concat("actor ", slot.actor, ": ", text(Action{slot.stage, kind, m}), " waits: ");
    const std::size_t limit = kind == Kind::F ? reached(slot) : rules_.limits.size();
    if (limit < rules_.limits.size()) {
      const EngineLimit& by = rules_.limits[limit];
      return concat(what, in_flight(slot, by), " in flight, and \"", by.text, "\" allows ", slot.most[limit]);
    }
    const char* names[] = {"warm-up", "steady", "drain"};
    return concat(what, names[phase(actor)], " does not let ", name(kind), " run");
  }

  const EngineRules& rules_;
  const Placed& placed_;
  std::int32_t microbatches_;
  const TableCosts& costs_;
  const Network& network_;
  double tolerance_ = 0;
  std::vector<std::vector<std::int32_t>> successors_;
  std::vector<Slot> slots_;  // at way * stages + stage
  std::vector<Actor> actors_;
  // Of each stage and micro-batch, forward and backward: needs that have not come, and when the last of those that have did.
  std::array<std::vector<std::int32_t>, 2> needs_;
  std::array<std::vector<double>, 2> ready_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<std::int32_t> awake_;
  std::map<std::pair<std::int32_t, std::int32_t>, double> free_;  // when each link, or medium, is
  Schedule schedule_;
};

}  // namespace

Listed schedule_by(const EngineRules& rules, const Placed& placed, std::int32_t microbatches, const TableCosts& costs,
                   const Network& network) {
  return Engine(rules, placed, microbatches, costs, network).run();
}

}  // namespace penstock
