// SPDX-License-Identifier: Apache-2.0
#include "search/list_schedule.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

class ListScheduler {
 public:
  ListScheduler(const Legs& legs, const HeadsAndTails& ends, const Policy& policy)
      : legs_(legs), ends_(ends), policy_(policy), run_(legs), rows_(at(legs.actors())) {
    for (std::int32_t l = 0; l < legs.size(); ++l) ahead_.push_back(most_ahead(l));
  }

  Rows rows() {
    for (;;) {
      Choice first;
      for (std::int32_t a = 0; a < legs_.actors(); ++a) {
        const Choice choice = choose(a);
        if (choice.start < first.start) first = choice;
      }
      if (first.start == kInfinity) return is_complete() ? std::move(rows_) : Rows{};
      run_.append(first.step);
      rows_[legs_[first.step.leg].actor].push_back(first.step);
    }
  }

 private:
  struct Choice {
    Step step;
    double start = kInfinity;
    double rank = 0;  // smaller is better
  };

  std::int32_t most_ahead(std::int32_t l) const {
    const StageLeg& leg = legs_[l];
    double work = 0;
    for (const std::int32_t other : legs_.of_actor[leg.actor])
      for (int part = 0; part < 3; ++part) work += ends_.time(other, part);
    if (!leg.has_backward || std::isinf(policy_.depth) || work <= 0) return leg.count();
    const double way = ends_.head(l, 1, 0) - ends_.head(l, 0, 0) - ends_.time(l, 0);
    return 1 + static_cast<std::int32_t>(std::min(std::ceil(policy_.depth * way / work - 1e-9), 1.0 * leg.count()));
  }

  bool is_complete() const {
    return std::all_of(legs_.legs.begin(), legs_.legs.end(), [&, l = 0](const StageLeg& leg) mutable {
      const bool done = run_.forwards(l) == leg.count() && (!leg.has_backward || run_.finished(l) == leg.count());
      ++l;
      return done;
    });
  }

  // Whether the oldest micro-batches can still be finished, one after the other, when the leg's next forward has taken its memory.
  bool is_safe(const Step& step) const {
    const StageLeg& leg = legs_[step.leg];
    const std::vector<std::int32_t>& here = legs_.of_actor[leg.actor];
    if (here.size() == 1) return true;
    const std::int32_t own = leg.microbatches[run_.forwards(step.leg)];
    std::int64_t free = legs_.limit - run_.live(leg.actor) - leg.live;
    std::vector<std::int32_t> next(here.size());  // of each leg, the place of the first of its micro-batches not yet looked at
    for (std::size_t i = 0; i < here.size(); ++i) next[i] = run_.finished(here[i]);
    for (std::int32_t m = 0; m < own; ++m) {
      std::int64_t needed = 0, held = 0;
      for (std::size_t i = 0; i < here.size(); ++i) {
        const StageLeg& other = legs_[here[i]];
        std::int32_t& k = next[i];
        while (k < other.count() && other.microbatches[k] < m) ++k;
        if (k == other.count() || other.microbatches[k] != m) continue;
        (k < run_.forwards(here[i]) ? held : needed) += other.live;
      }
      if (needed > free) return false;
      free += held;
    }
    return true;
  }

  bool is_allowed(const Step& step) const {
    if (!run_.is_next(step)) return false;
    if (step.kind != Kind::F) return true;
    return run_.forwards(step.leg) - run_.backwards(step.leg) < ahead_[at(step.leg)] && run_.fits(step) && is_safe(step);
  }

  double rank(const Step& step) const {
    const StageLeg& leg = legs_[step.leg];
    const bool forward = step.kind == Kind::F;
    const std::int32_t k = forward ? run_.forwards(step.leg) : run_.backwards(step.leg);
    const double tail = ends_.tail(step.leg, forward ? 0 : 1, k);
    const double order = (policy_.deep_first ? 1e-6 : -1e-6) * ends_.tail(step.leg, forward ? 0 : 1, 0);
    switch (policy_.prefer) {
      case Policy::Prefer::backward:
        return (forward ? 1e9 : 0) + order;
      case Policy::Prefer::forward:
        return (forward ? 0 : 1e9) + order;
      case Policy::Prefer::in_turn: {
        const std::vector<Step>& row = rows_[leg.actor];
        const auto last = std::find_if(row.rbegin(), row.rend(), [](const Step& before) { return before.kind != Kind::W; });
        return (last != row.rend() && forward == (last->kind == Kind::F) ? 1e9 : 0) + order;
      }
      default:
        return -tail;
    }
  }

  // I and W, or B where only that is allowed or takes less and nothing would fit between them.
  Kind backward_kind(const StageLeg& leg) const {
    if (!legs_.split || (legs_.whole && policy_.backlog == 0 && leg.whole <= leg.input + leg.weight)) return Kind::B;
    return legs_.whole && !leg.has_weight && leg.whole < leg.input ? Kind::B : Kind::I;
  }

  Choice choose(std::int32_t actor) const {
    const double free = run_.free(actor);
    Choice best;
    std::int32_t waiting = 0;
    bool crowded = false;
    const auto consider = [&](const Step& step) {
      if (!is_allowed(step)) return;
      const Choice other{step, std::max(free, run_.ready(step)), rank(step)};
      if (other.start < best.start || (other.start == best.start && other.start < kInfinity && other.rank < best.rank)) best = other;
    };
    for (const std::int32_t l : legs_.of_actor[actor]) {
      const Step forward{static_cast<std::int16_t>(l), Kind::F};
      consider(forward);
      consider({forward.leg, backward_kind(legs_[l])});
      crowded = crowded || (run_.is_next(forward) && !run_.fits(forward) && run_.ready(forward) <= free);
      waiting += run_.pending_weights(l);
    }
    if (waiting == 0) return best;
    const Choice weight = choose_weight(actor, best.start - free);
    if (waiting > policy_.backlog || (crowded && policy_.make_room)) return weight;
    return best.start > free && best.start - free >= policy_.fill * legs_[weight.step.leg].weight ? weight : best;
  }

  // The longest W that fits into the gap, or else the shortest.
  Choice choose_weight(std::int32_t actor, double gap) const {
    Choice best;
    for (const std::int32_t l : legs_.of_actor[actor]) {
      if (run_.pending_weights(l) == 0) continue;
      const double time = legs_[l].weight;
      const Choice other{{static_cast<std::int16_t>(l), Kind::W}, run_.free(actor), time <= gap ? -time : 1e9 + time};
      if (best.start == kInfinity || other.rank < best.rank) best = other;
    }
    return best;
  }

  const Legs& legs_;
  const HeadsAndTails& ends_;
  const Policy& policy_;
  PartialRun run_;
  Rows rows_;
  std::vector<std::int32_t> ahead_;  // of each leg
};

}  // namespace

std::string text(const Policy& policy) {
  static constexpr const char* kPrefer[] = {"backward first", "forward first", "in turn", "critical path"};
  return concat("list schedule (", kPrefer[static_cast<int>(policy.prefer)],
                std::isinf(policy.depth) ? "" : concat(", depth ", policy.depth), ", W ",
                policy.backlog < 1 << 30 ? concat("after ", policy.backlog) : concat("filling ", policy.fill),
                policy.deep_first ? "" : ", breadth first", policy.make_room ? ", making room" : "", ")");
}

Rows list_schedule(const Legs& legs, const HeadsAndTails& ends, const Policy& policy) {
  return ListScheduler(legs, ends, policy).rows();
}

std::vector<Policy> policies(const Legs& legs) {
  std::vector<Policy> out;
  const bool chunked = std::any_of(legs.of_actor.begin(), legs.of_actor.end(), [](const auto& here) { return here.size() > 1; });
  const auto add = [&](const Policy& policy) {
    out.push_back(policy);
    if (!chunked) return;
    out.push_back(policy);
    out.back().deep_first = false;
  };
  for (const auto prefer : {Policy::Prefer::backward, Policy::Prefer::in_turn, Policy::Prefer::critical, Policy::Prefer::forward}) {
    for (const double depth : {kInfinity, 1.0, 1.5, 2.0, 3.0}) {
      for (const double fill : {0.0, 0.5, 1.0}) {
        add({.prefer = prefer, .depth = depth, .fill = fill});
        add({.prefer = prefer, .depth = depth, .fill = fill, .make_room = true});
      }
      for (const int backlog : {0, 1, legs.actors() / 2}) add({.prefer = prefer, .depth = depth, .fill = 0.5, .backlog = backlog});
    }
  }
  return out;
}

Rows zero_bubble_rows(const Legs& legs, double warm_up, double delay) {
  Rows rows;
  const std::int32_t p = legs.actors(), m = legs.microbatches;
  for (std::int32_t r = 0; r < p; ++r) {
    if (legs.of_actor[r].size() != 1 || legs.of_actor[r][0] != r || !legs[r].has_weight || !legs.split) return {};
    const std::int16_t leg = static_cast<std::int16_t>(r);
    const double most = legs[r].live > 0 ? std::min(1.0 * m, static_cast<double>(legs.limit / legs[r].live)) : m;
    const std::int32_t cap = static_cast<std::int32_t>(most);
    const std::int32_t ahead = std::min(static_cast<std::int32_t>(1 + warm_up * (p - 1 - r)), cap);
    // With a forward after each W, ahead + late activations live; else the W waits until the forward has run.
    const std::int32_t late = std::min(static_cast<std::int32_t>(delay * r), cap - ahead);
    auto& row = rows.emplace_back();
    take_turns(m, ahead, late, [&](Kind kind, int) { row.push_back({leg, kind}); });
  }
  return rows;
}

}  // namespace penstock
