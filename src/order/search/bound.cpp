#include "search/bound.h"

#include <algorithm>
#include <queue>

namespace penstock {
namespace {

constexpr int kParts = 3;  // F, I, W

// Returns how long a result takes to get from one lane to another, if nothing is in its way.
double travel(const std::vector<LaneSend>& sends, std::int32_t slot) {
  for (const LaneSend& send : sends)
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

HeadsAndTails::HeadsAndTails(const Lanes& lanes)
    : lanes_(lanes), feeds_(lanes.lanes.size(), std::vector<bool>(lanes.lanes.size(), false)), returns_(feeds_) {
  for (std::int32_t l = 0; l < lanes.size(); ++l) {
    const StageLane& lane = lanes[l];
    double input = lane.input, weight = lane.weight;
    if (!lane.has_backward) input = weight = 0;
    if (lane.has_backward && lanes.whole) {
      const double all = lanes.split ? std::min(lane.whole, lane.input + lane.weight) : lane.whole;
      input = lanes.split ? std::min(lane.input, all) : lane.whole;
      weight = all - input;
    }
    for (const double time : {lane.forward, input, weight}) times_.push_back(time);
    const std::int64_t held = lane.live > 0 ? lanes.limit / lane.live : lane.count();
    const std::int64_t ahead = (lanes.staleness + std::int64_t{1}) * lanes.of_step;
    windows_.push_back(static_cast<std::int32_t>(std::min<std::int64_t>({held, ahead, lane.count()})));
    feeds_[l][l] = returns_[l][l] = true;
  }
  for (std::int32_t from = lanes.size(); from-- > 0;) {
    for (std::int32_t to = from + 1; to < lanes.size(); ++to) {
      for (const LaneNeed& need : lanes[to].forward_needs) feeds_[from][to] = feeds_[from][to] || feeds_[from][at(need.lane)];
      for (const LaneNeed& need : lanes[from].backward_needs) returns_[from][to] = returns_[from][to] || returns_[at(need.lane)][to];
    }
  }
  for (const auto& here : lanes.of_actor)
    is_small_ = is_small_ && kParts * static_cast<std::int64_t>(here.size()) * lanes.microbatches <= 1000;
  head_.assign(at(lanes.size()) * kParts * at(lanes.microbatches), 0);
  tail_ = head_;
  find_heads();
  find_tails();
  find_bound();
}

void HeadsAndTails::heads_after(const PartialRun& run, const std::vector<Choice>& choices, std::vector<double>& heads) const {
  const auto end = [&](std::int32_t l, int part, std::int32_t k) { return heads[index(l, part, k)] + time(l, part); };
  // The k-th of a lane's kind, of which `done` have run, from what comes before it.
  const auto set = [&](std::int32_t l, int part, std::int32_t k, std::int32_t done) -> double& {
    double& head = heads[index(l, part, k)];
    const Choice& choice = choices[lanes_[l].actor];
    const bool chosen = choice.lane == l && choice.part == part && k == done;
    head = std::max(head_[index(l, part, k)], chosen ? run.free(lanes_[l].actor) : choice.after);
    if (k > done) head = std::max(head, end(l, part, k - 1));
    return head;
  };
  const auto arrive = [&](const LaneNeed& need, const std::vector<LaneSend>& sends, int part, std::int32_t k, std::int32_t done) {
    if (k < done) return need.slot >= 0 ? run.arrival(need.slot, k) : 0.0;
    return end(need.lane, part, k) + travel(sends, need.slot);
  };
  for (std::int32_t k = 0; k < lanes_.microbatches; ++k) {
    for (std::int32_t l = 0; l < lanes_.size(); ++l) {
      const std::int32_t done = run.forwards(l), window = windows_[l];
      if (k < done || k >= lanes_[l].count()) continue;
      double& head = set(l, 0, k, done);
      for (const LaneNeed& need : lanes_[l].forward_needs)
        head = std::max(head, arrive(need, lanes_[need.lane].forward_sends, 0, k, run.forwards(need.lane)));
      if (lanes_[l].has_backward && k >= window && k - window >= run.finished(l)) head = std::max(head, end(l, 2, k - window));
    }
    for (std::int32_t l = lanes_.size(); l-- > 0;) {
      if (!lanes_[l].has_backward || k >= lanes_[l].count()) continue;
      const std::int32_t done = run.backwards(l);
      if (k >= done) {
        double& head = set(l, 1, k, done);
        if (k >= run.forwards(l)) head = std::max(head, end(l, 0, k));
        for (const LaneNeed& need : lanes_[l].backward_needs)
          head = std::max(head, arrive(need, lanes_[need.lane].backward_sends, 1, k, run.backwards(need.lane)));
      }
      if (k < run.finished(l)) continue;
      double& head = set(l, 2, k, run.finished(l));
      if (k >= done) head = std::max(head, end(l, 1, k));
    }
  }
}

void HeadsAndTails::find_heads() {
  const PartialRun empty(lanes_);
  const std::vector<Choice> zero(lanes_.of_actor.size());
  heads_after(empty, zero, head_);
  if (!is_small_) return;
  for (std::int32_t k = 0; k < lanes_.microbatches; ++k) {
    for (std::int32_t l = 0; l < lanes_.size(); ++l) strengthen_head(l, 0, k);
    for (std::int32_t l = lanes_.size(); l-- > 0;) {
      strengthen_head(l, 1, k);
      strengthen_head(l, 2, k);
    }
  }
  heads_after(empty, zero, head_);
}

// All that its own actor must have done before it.
void HeadsAndTails::strengthen_head(std::int32_t lane, int part, std::int32_t k) {
  const StageLane& of = lanes_[lane];
  if (k >= of.count() || (part > 0 && !of.has_backward)) return;
  std::vector<std::pair<double, double>> work;
  const auto add = [&](std::int32_t l, int p, std::int32_t until) {
    for (std::int32_t j = 0; j < std::min(until, lanes_[l].count()); ++j) work.emplace_back(head(l, p, j), time(l, p));
  };
  for (const std::int32_t l : lanes_.of_actor[of.actor]) {
    if (lanes_[l].route != of.route) continue;
    const bool self = l == lane, above = feeds_[l][at(lane)], below = returns_[at(lane)][l];
    const std::int32_t released = std::max(k + 1 - windows_[l], 0);
    if (part == 0) {
      if (!above) continue;
      add(l, 0, k + !self);
      if (lanes_[l].has_backward) add(l, 1, released), add(l, 2, released);
    } else {
      if (!above && !below) continue;
      add(l, 0, k + 1);
      if (!lanes_[l].has_backward) continue;
      add(l, 1, below ? k + (!self || part == 2) : released);
      add(l, 2, self && part == 2 ? std::max(k, released) : released);
    }
  }
  double& head = head_[index(lane, part, k)];
  head = std::max(head, end_of(work));
}

void HeadsAndTails::find_tails() {
  const auto from = [&](std::int32_t l, int part, std::int32_t k) {
    return k < lanes_[l].count() ? tail_[index(l, part, k)] + time(l, part) : 0.0;
  };
  for (std::int32_t k = lanes_.microbatches; k-- > 0;) {
    for (std::int32_t l = 0; l < lanes_.size(); ++l) {
      if (k >= lanes_[l].count() || !lanes_[l].has_backward) continue;
      tail_[index(l, 2, k)] = std::max(from(l, 2, k + 1), from(l, 0, k + windows_[l]));
      if (is_small_) strengthen_tail(l, 2, k);
      double& tail = tail_[index(l, 1, k)];
      tail = std::max(from(l, 1, k + 1), from(l, 2, k));
      for (std::int32_t other = 0; other < l; ++other)
        for (const LaneNeed& need : lanes_[other].backward_needs)
          if (need.lane == l) tail = std::max(tail, travel(lanes_[l].backward_sends, need.slot) + from(other, 1, k));
      if (is_small_) strengthen_tail(l, 1, k);
    }
    for (std::int32_t l = lanes_.size(); l-- > 0;) {
      if (k >= lanes_[l].count()) continue;
      double& tail = tail_[index(l, 0, k)];
      tail = std::max(from(l, 0, k + 1), lanes_[l].has_backward ? from(l, 1, k) : 0.0);
      for (std::int32_t other = l + 1; other < lanes_.size(); ++other)
        for (const LaneNeed& need : lanes_[other].forward_needs)
          if (need.lane == l) tail = std::max(tail, travel(lanes_[l].forward_sends, need.slot) + from(other, 0, k));
      if (is_small_) strengthen_tail(l, 0, k);
    }
  }
}

// All that its own actor cannot have done before it.
void HeadsAndTails::strengthen_tail(std::int32_t lane, int part, std::int32_t k) {
  const StageLane& of = lanes_[lane];
  std::vector<std::pair<double, double>> work;
  const auto add = [&](std::int32_t l, int p, std::int32_t first) {
    for (std::int32_t j = std::max(first, 0); j < lanes_[l].count(); ++j) work.emplace_back(tail_[index(l, p, j)], time(l, p));
  };
  for (const std::int32_t l : lanes_.of_actor[of.actor]) {
    if (lanes_[l].route != of.route) continue;
    const bool self = l == lane, above = returns_[l][at(lane)], below = feeds_[at(lane)][l];
    const std::int32_t held = k + windows_[at(lane)];  // the first micro-batch that only comes when this one's W has run
    if (part == 0) {
      if (below) add(l, 0, k + self);
      if ((above || below) && lanes_[l].has_backward) add(l, 1, k), add(l, 2, k);
    } else {
      if (below) add(l, 0, held);
      if (!lanes_[l].has_backward || (!above && !below)) continue;
      if (part == 1 && above) {
        add(l, 1, k + self);
        add(l, 2, k);
      } else {
        add(l, 1, held);
        add(l, 2, self ? k + 1 : held);
      }
    }
  }
  double& tail = tail_[index(lane, part, k)];
  tail = std::max(tail, end_of(work));
}

void HeadsAndTails::find_bound() {
  for (std::int32_t a = 0; a < lanes_.actors(); ++a) {
    std::vector<MachineTask> tasks;
    for (const std::int32_t l : lanes_.of_actor[a])
      for (int part = 0; part < (lanes_[l].has_backward ? kParts : 1); ++part)
        for (std::int32_t k = 0; k < lanes_[l].count(); ++k) tasks.push_back({head(l, part, k), time(l, part), tail(l, part, k)});
    bound_ = std::max(bound_, one_machine_bound(tasks));
  }
}

}  // namespace penstock
