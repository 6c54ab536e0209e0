// SPDX-License-Identifier: Apache-2.0
#include "search/bound.h"

#include <algorithm>
#include <queue>

namespace penstock {
namespace {

constexpr int kParts = 3;  // F, I, W

// Returns how long a result takes to get from one leg to another, if nothing is in its way.
double travel(const std::vector<LegSend>& sends, std::int32_t slot) {
  for (const LegSend& send : sends)
    if (send.slot == slot) return send.seconds + send.latency;
  return 0;
}

// When all of it could be done, one after the other; reorders it.
double end_of(std::vector<std::pair<double, double>>& work) {
  std::sort(work.begin(), work.end());
  double end = 0;
  for (const auto& [head, time] : work) end = std::max(end, head) + time;
  return end;
}

}  // namespace

double one_machine_bound(std::vector<MachineTask>& tasks) {
  std::sort(tasks.begin(), tasks.end(), [](const MachineTask& a, const MachineTask& b) { return a.head < b.head; });
  using Open = std::pair<double, double>;  // tail, time left
  std::vector<Open> open;                  // a heap
  double now = 0, bound = 0;
  for (std::size_t next = 0; next < tasks.size() || !open.empty();) {
    if (open.empty()) now = std::max(now, tasks[next].head);
    for (; next < tasks.size() && tasks[next].head <= now; ++next) {
      open.emplace_back(tasks[next].tail, tasks[next].time);
      std::push_heap(open.begin(), open.end());
    }
    std::pop_heap(open.begin(), open.end());
    Open& work = open.back();  // the longest tail
    const double end = now + work.second;
    bound = std::max(bound, end + work.first);
    if (next == tasks.size() || end <= tasks[next].head) {
      open.pop_back();
      now = end;
    } else {
      work.second = end - tasks[next].head;
      now = tasks[next].head;
      std::push_heap(open.begin(), open.end());
    }
  }
  return bound;
}

HeadsAndTails::HeadsAndTails(const Legs& legs)
    : legs_(legs), feeds_(legs.legs.size(), std::vector<bool>(legs.legs.size(), false)), returns_(feeds_) {
  for (std::int32_t l = 0; l < legs.size(); ++l) {
    const StageLeg& leg = legs[l];
    double input = leg.input, weight = leg.weight;
    if (!leg.has_backward) input = weight = 0;
    if (leg.has_backward && legs.whole) {
      const double all = legs.split ? std::min(leg.whole, leg.input + leg.weight) : leg.whole;
      input = legs.split ? std::min(leg.input, all) : leg.whole;
      weight = all - input;
    }
    for (const double time : {leg.forward, input, weight}) times_.push_back(time);
    const std::int64_t held = leg.live > 0 ? legs.limit / leg.live : leg.count();
    const std::int64_t ahead = (legs.staleness + std::int64_t{1}) * legs.of_step;
    windows_.push_back(static_cast<std::int32_t>(std::min<std::int64_t>({held, ahead, leg.count()})));
    feeds_[l][l] = returns_[l][l] = true;
  }
  for (std::int32_t from = legs.size(); from-- > 0;) {
    for (std::int32_t to = from + 1; to < legs.size(); ++to) {
      for (const LegNeed& need : legs[to].forward_needs) feeds_[from][to] = feeds_[from][to] || feeds_[from][at(need.leg)];
      for (const LegNeed& need : legs[from].backward_needs) returns_[from][to] = returns_[from][to] || returns_[at(need.leg)][to];
    }
  }
  for (const auto& here : legs.of_actor)
    is_small_ = is_small_ && kParts * static_cast<std::int64_t>(here.size()) * legs.microbatches <= 1000;
  head_.assign(at(legs.size()) * kParts * at(legs.microbatches), 0);
  tail_ = head_;
  find_heads();
  find_tails();
  find_bound();
}

void HeadsAndTails::heads_after(const PartialRun& run, const std::vector<Choice>& choices, std::vector<double>& heads) const {
  const auto end = [&](std::int32_t l, int part, std::int32_t k) { return heads[index(l, part, k)] + time(l, part); };
  // The k-th of a leg's kind, of which `done` have run, from what comes before it.
  const auto set = [&](std::int32_t l, int part, std::int32_t k, std::int32_t done) -> double& {
    double& head = heads[index(l, part, k)];
    const Choice& choice = choices[legs_[l].actor];
    const bool chosen = choice.leg == l && choice.part == part && k == done;
    head = std::max(head_[index(l, part, k)], chosen ? run.free(legs_[l].actor) : choice.after);
    if (k > done) head = std::max(head, end(l, part, k - 1));
    return head;
  };
  const auto arrive = [&](const LegNeed& need, const std::vector<LegSend>& sends, int part, std::int32_t k, std::int32_t done) {
    if (k < done) return need.slot >= 0 ? run.arrival(need.slot, k) : 0.0;
    return end(need.leg, part, k) + travel(sends, need.slot);
  };
  for (std::int32_t k = 0; k < legs_.microbatches; ++k) {
    for (std::int32_t l = 0; l < legs_.size(); ++l) {
      const std::int32_t done = run.forwards(l), window = windows_[l];
      if (k < done || k >= legs_[l].count()) continue;
      double& head = set(l, 0, k, done);
      for (const LegNeed& need : legs_[l].forward_needs)
        head = std::max(head, arrive(need, legs_[need.leg].forward_sends, 0, k, run.forwards(need.leg)));
      if (legs_[l].has_backward && k >= window && k - window >= run.finished(l)) head = std::max(head, end(l, 2, k - window));
    }
    for (std::int32_t l = legs_.size(); l-- > 0;) {
      if (!legs_[l].has_backward || k >= legs_[l].count()) continue;
      const std::int32_t done = run.backwards(l);
      if (k >= done) {
        double& head = set(l, 1, k, done);
        if (k >= run.forwards(l)) head = std::max(head, end(l, 0, k));
        for (const LegNeed& need : legs_[l].backward_needs)
          head = std::max(head, arrive(need, legs_[need.leg].backward_sends, 1, k, run.backwards(need.leg)));
      }
      if (k < run.finished(l)) continue;
      double& head = set(l, 2, k, run.finished(l));
      if (k >= done) head = std::max(head, end(l, 1, k));
    }
  }
}

void HeadsAndTails::find_heads() {
  const PartialRun empty(legs_);
  const std::vector<Choice> zero(legs_.of_actor.size());
  heads_after(empty, zero, head_);
  if (!is_small_) return;
  for (std::int32_t k = 0; k < legs_.microbatches; ++k) {
    for (std::int32_t l = 0; l < legs_.size(); ++l) strengthen_head(l, 0, k);
    for (std::int32_t l = legs_.size(); l-- > 0;) {
      strengthen_head(l, 1, k);
      strengthen_head(l, 2, k);
    }
  }
  heads_after(empty, zero, head_);
}

// All that its own actor must have done before it.
void HeadsAndTails::strengthen_head(std::int32_t leg, int part, std::int32_t k) {
  const StageLeg& of = legs_[leg];
  if (k >= of.count() || (part > 0 && !of.has_backward)) return;
  std::vector<std::pair<double, double>> work;
  const auto add = [&](std::int32_t l, int p, std::int32_t until) {
    for (std::int32_t j = 0; j < std::min(until, legs_[l].count()); ++j) work.emplace_back(head(l, p, j), time(l, p));
  };
  for (const std::int32_t l : legs_.of_actor[of.actor]) {
    if (legs_[l].route != of.route) continue;
    const bool self = l == leg, above = feeds_[l][at(leg)], below = returns_[at(leg)][l];
    const std::int32_t released = std::max(k + 1 - windows_[l], 0);
    if (part == 0) {
      if (!above) continue;
      add(l, 0, k + !self);
      if (legs_[l].has_backward) add(l, 1, released), add(l, 2, released);
    } else {
      if (!above && !below) continue;
      add(l, 0, k + 1);
      if (!legs_[l].has_backward) continue;
      add(l, 1, below ? k + (!self || part == 2) : released);
      add(l, 2, self && part == 2 ? std::max(k, released) : released);
    }
  }
  double& head = head_[index(leg, part, k)];
  head = std::max(head, end_of(work));
}

void HeadsAndTails::find_tails() {
  const auto from = [&](std::int32_t l, int part, std::int32_t k) {
    return k < legs_[l].count() ? tail_[index(l, part, k)] + time(l, part) : 0.0;
  };
  for (std::int32_t k = legs_.microbatches; k-- > 0;) {
    for (std::int32_t l = 0; l < legs_.size(); ++l) {
      if (k >= legs_[l].count() || !legs_[l].has_backward) continue;
      tail_[index(l, 2, k)] = std::max(from(l, 2, k + 1), from(l, 0, k + windows_[l]));
      if (is_small_) strengthen_tail(l, 2, k);
      double& tail = tail_[index(l, 1, k)];
      tail = std::max(from(l, 1, k + 1), from(l, 2, k));
      for (std::int32_t other = 0; other < l; ++other)
        for (const LegNeed& need : legs_[other].backward_needs)
          if (need.leg == l) tail = std::max(tail, travel(legs_[l].backward_sends, need.slot) + from(other, 1, k));
      if (is_small_) strengthen_tail(l, 1, k);
    }
    for (std::int32_t l = legs_.size(); l-- > 0;) {
      if (k >= legs_[l].count()) continue;
      double& tail = tail_[index(l, 0, k)];
      tail = std::max(from(l, 0, k + 1), legs_[l].has_backward ? from(l, 1, k) : 0.0);
      for (std::int32_t other = l + 1; other < legs_.size(); ++other)
        for (const LegNeed& need : legs_[other].forward_needs)
          if (need.leg == l) tail = std::max(tail, travel(legs_[l].forward_sends, need.slot) + from(other, 0, k));
      if (is_small_) strengthen_tail(l, 0, k);
    }
  }
}

// All that its own actor cannot have done before it.
void HeadsAndTails::strengthen_tail(std::int32_t leg, int part, std::int32_t k) {
  const StageLeg& of = legs_[leg];
  std::vector<std::pair<double, double>> work;
  const auto add = [&](std::int32_t l, int p, std::int32_t first) {
    for (std::int32_t j = std::max(first, 0); j < legs_[l].count(); ++j) work.emplace_back(tail_[index(l, p, j)], time(l, p));
  };
  for (const std::int32_t l : legs_.of_actor[of.actor]) {
    if (legs_[l].route != of.route) continue;
    const bool self = l == leg, above = returns_[l][at(leg)], below = feeds_[at(leg)][l];
    const std::int32_t held = k + windows_[at(leg)];  // the first micro-batch that only comes when this one's W has run
    if (part == 0) {
      if (below) add(l, 0, k + self);
      if ((above || below) && legs_[l].has_backward) add(l, 1, k), add(l, 2, k);
    } else {
      if (below) add(l, 0, held);
      if (!legs_[l].has_backward || (!above && !below)) continue;
      if (part == 1 && above) {
        add(l, 1, k + self);
        add(l, 2, k);
      } else {
        add(l, 1, held);
        add(l, 2, self ? k + 1 : held);
      }
    }
  }
  double& tail = tail_[index(leg, part, k)];
  tail = std::max(tail, end_of(work));
}

void HeadsAndTails::find_bound() {
  for (std::int32_t a = 0; a < legs_.actors(); ++a) {
    std::vector<MachineTask> tasks;
    for (const std::int32_t l : legs_.of_actor[a])
      for (int part = 0; part < (legs_[l].has_backward ? kParts : 1); ++part)
        for (std::int32_t k = 0; k < legs_[l].count(); ++k) tasks.push_back({head(l, part, k), time(l, part), tail(l, part, k)});
    bound_ = std::max(bound_, one_machine_bound(tasks));
  }
}

}  // namespace penstock
