// SPDX-License-Identifier: Apache-2.0
#include "penstock/table.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <queue>

#include "base/invariant.h"
#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"
#include "schedule/slices.h"
#include "schedule/table_live.h"
#include "schedule/transfers.h"

namespace penstock {
namespace {

double& entry(std::vector<std::vector<double>>& times, Position p) {
  return times[at(p.actor)][at(p.index)];
}

// In [0, 1), by Steele, Lea and Flood's SplitMix64 (2014).
double hashed(std::uint64_t seed, const Action& action) {
  std::uint64_t x = 0;
  for (const std::uint64_t word : {seed, static_cast<std::uint64_t>(action.stage), static_cast<std::uint64_t>(action.microbatch),
                                   static_cast<std::uint64_t>(action.kind)}) {
    x = (x ^ word) + 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-53;
}

double duration(const TableCosts& costs, const Disturbance& disturbance, const Action& action, std::int32_t actor) {
  double time = costs.of(action.stage, action.microbatch).of(action.kind);
  if (costs.first.empty()) time *= action.count;
  for (std::int32_t m = action.microbatch + 1; !costs.first.empty() && m < action.microbatch + action.count; ++m)
    time += costs.of(action.stage, m).of(action.kind);
  if (disturbance.jitter > 0) time *= 1 + disturbance.jitter * (2 * hashed(disturbance.seed, action) - 1);
  if (!disturbance.slowdown.empty()) time *= disturbance.slowdown[at(actor)];
  return time;
}

// The bytes that `action` sends for each of its uses in a micro-batch.
double use_bytes(const TableCosts& costs, const Action& action, std::int32_t stage, std::int32_t microbatch) {
  const StageCosts& of = costs.of(stage, microbatch);
  if (action.kind == Kind::F) return of.forward_bytes;
  if (action.kind == Kind::W) return of.gradient_bytes;
  return stage == action.stage ? of.weight_bytes : of.backward_bytes;
}

// The transfers that actions start to other actors, and the links that these occupy.
class Links {
 public:
  Links(const WorkIndex& work, const TableCosts& costs, const TableOptions& options, std::vector<TableTransfer>& transfers)
      : work_(work), costs_(costs), options_(options), transfers_(transfers), first_(work.schedule->actors.size(), -1) {}

  // Sends what the action makes, `by` itself, its send or a receive: one parcel to each actor that needs something of it, in the order of
  // actors, or to the actor `to` alone (-1: all). An output goes there once, whoever needs it. Then calls arrive(Position, time) for each
  // use.
  template <class Arrive>
  void send(Position here, Position by, std::int32_t to, double ready, Arrive&& arrive) {
    pack(here, work_.at(here), to);
    for (const std::int32_t i : parcels_) transfer(here, by, lanes_[at(i)], ready);
    for (const auto& [use, lane] : uses_) arrive(use, lanes_[at(lane)].arrival);
  }

 private:
  // The transfers from one actor to the actor `to`.
  struct Lane {
    std::int32_t to, next;  // of the same sender's
    std::int32_t channel;   // what it occupies
    double latency, bandwidth;
    std::int64_t parcel = -1;      // the number of the action that it last carried something of,
    std::int32_t microbatch = -1;  // the micro-batch of that,
    double bytes = 0;              // all of it,
    double arrival = 0;            // and when it will be there
  };
  // When it is free, and the last transfer on it (where they are recorded).
  struct Channel {
    double free = 0;
    std::int64_t last = -1;
  };

  void pack(Position here, const Action& action, std::int32_t to) {
    uses_.clear();
    parcels_.clear();
    ++sent_;
    for_each_use(work_, action, [&](Position use, std::int32_t stage, std::int32_t m) {
      if (use.actor == here.actor || (to >= 0 && use.actor != to)) return;
      const std::int32_t i = lane_between(here.actor, use.actor);
      uses_.emplace_back(use, i);
      Lane& lane = lanes_[at(i)];
      const bool first = lane.parcel != sent_;
      if (first) {
        lane.parcel = sent_;
        lane.bytes = 0;
        parcels_.push_back(i);
      }
      if (first || lane.microbatch != m || action.kind != Kind::F) lane.bytes += use_bytes(costs_, action, stage, m);
      lane.microbatch = m;
    });
    const auto receiver = [&](std::int32_t i) { return lanes_[at(i)].to; };
    if (parcels_.size() > 1) std::sort(parcels_.begin(), parcels_.end(), [&](auto a, auto b) { return receiver(a) < receiver(b); });
  }

  void transfer(Position here, Position by, Lane& lane, double ready) {
    Channel& channel = channels_[at(lane.channel)];
    const double begin = std::max(ready, channel.free);
    const std::int64_t behind = channel.free > ready ? channel.last : -1;
    channel.free = begin + lane.bytes / lane.bandwidth;
    lane.arrival = channel.free + lane.latency;
    if (!options_.record) return;
    channel.last = std::ssize(transfers_);
    transfers_.push_back({here, by, lane.to, begin, lane.arrival, lane.bytes, behind});
  }

  std::int32_t lane_between(std::int32_t from, std::int32_t to) {
    std::int32_t& first = first_[at(from)];
    for (std::int32_t i = first; i >= 0; i = lanes_[at(i)].next) {
      if (lanes_[at(i)].to == to) return i;
    }
    const Link& link = options_.network.at(from, to);
    lanes_.push_back({to, first, channel_of(link), link.latency, link.bandwidth});
    return first = static_cast<std::int32_t>(lanes_.size()) - 1;
  }

  std::int32_t channel_of(const Link& link) {
    const std::int32_t next = static_cast<std::int32_t>(channels_.size());
    const std::int32_t found = link.medium < 0 ? next : mediums_.try_emplace(link.medium, next).first->second;
    if (found == next) channels_.emplace_back();
    return found;
  }

  const WorkIndex& work_;
  const TableCosts& costs_;
  const TableOptions& options_;
  std::vector<TableTransfer>& transfers_;
  std::vector<std::int32_t> first_;  // lane of each actor
  std::vector<Lane> lanes_;
  std::vector<Channel> channels_;
  std::map<std::int32_t, std::int32_t> mediums_;
  // The action that was sent last: where it is needed elsewhere, and by which lane; the lanes; its number.
  std::vector<std::pair<Position, std::int32_t>> uses_;
  std::vector<std::int32_t> parcels_;
  std::int64_t sent_ = 0;
};

bool has_medium(const Network& network) {
  return network.link.medium >= 0 ||
         std::any_of(network.between.begin(), network.between.end(), [](const auto& entry) { return entry.second.medium >= 0; });
}

// The number of each row's first action where all are counted row by row, and of all.
std::vector<std::size_t> first_numbers(const std::vector<std::vector<Action>>& rows) {
  std::vector<std::size_t> first = {0};
  for (const auto& row : rows) first.push_back(first.back() + row.size());
  return first;
}

// Returns for each action, row by row, how many of its needs come from other actors.
std::vector<std::int32_t> needs_of_others(const WorkIndex& work, std::size_t actions) {
  std::vector<std::int32_t> needs;
  needs.reserve(actions);
  for (std::int32_t a = 0; a < std::ssize(work.schedule->actors); ++a) {
    for (const Action& action : work.schedule->actors[at(a)]) {
      std::int32_t& count = needs.emplace_back(0);
      for_each_need(work, action, [&](Position need) { count += need.actor != a; });
    }
  }
  return needs;
}

// Returns for each action, row by row, the action of its row that waits for it: for an UNSHARD the next compute of its stage, for a
// REDUCE_GRAD its U; -1: none.
std::vector<std::int32_t> followers(const WorkIndex& work, const std::vector<std::size_t>& first) {
  std::vector<std::int32_t> follower(first.back(), -1);
  std::vector<std::int32_t> use(work.shape->predecessors.size(), -1), update(use);
  const std::vector<std::vector<Action>>& rows = work.schedule->actors;
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (std::size_t i = rows[a].size(); i-- > 0;) {
      const Action& action = rows[a][i];
      const std::size_t stage = at(first_slice(action.stage, *work.schedule));
      if (is_collective(action.kind)) {
        follower[first[a] + i] = (action.kind == Kind::UNSHARD ? use : update)[stage];
      } else if (!is_host_copy(action.kind)) {
        use[stage] = static_cast<std::int32_t>(i);
        if (action.kind == Kind::U) update[stage] = static_cast<std::int32_t>(i);
      }
    }
    for (const Action& action : rows[a]) {
      const std::size_t stage = at(first_slice(action.stage, *work.schedule));
      use[stage] = update[stage] = -1;
    }
  }
  return follower;
}

// One pass over a table, whose rows are given: the engine makes rows and tells only when they end. An actor runs its next action when all
// that it needs from others is there; what it needs of its own row has run, or the table would not be valid.
class Pass {
 public:
  Pass(const WorkIndex& work, const TableCosts& costs, const TableOptions& options)
      : work_(work),
        rows_(work.schedule->actors),
        costs_(costs),
        options_(options),
        first_(first_numbers(rows_)),
        missing_(needs_of_others(work, first_.back())),
        follower_(work.has_sharding ? followers(work, first_) : std::vector<std::int32_t>()),
        done_(rows_.size()),
        clock_(rows_.size()),
        lanes_free_(work.offload.empty() && !work.has_sharding ? 0 : rows_.size()),
        links_(work, costs, options, time_.transfers) {
    for (const auto& row : rows_) {
      time_.start.emplace_back(row.size(), 0.0);
      time_.end.emplace_back(row.size());
    }
    time_.busy.assign(rows_.size(), 0);
    if (work.has_transfers()) find_parcels();
  }

  // Actors in any order: a link's transfers are all of one sender, and so in the order of its row, and of its receiver's.
  TableTime run() {
    for (std::int32_t a = static_cast<std::int32_t>(rows_.size()); a-- > 0;) awake_.push_back(a);
    while (!awake_.empty()) {
      const std::int32_t actor = awake_.back();
      awake_.pop_back();
      while (can_start(actor)) {
        start(actor);
        finish(actor);
      }
    }
    return result();
  }

  // Actors in the order in which their actions end, so that a medium's transfers are in the order in which they are ready.
  TableTime run_in_time() {
    using Finish = std::pair<double, std::int32_t>;  // of the action that an actor runs
    std::priority_queue<Finish, std::vector<Finish>, std::greater<>> ends;
    for (std::int32_t a = 0; a < static_cast<std::int32_t>(rows_.size()); ++a) awake_.push_back(a);
    for (;;) {
      for (const std::int32_t actor : awake_) {
        if (can_start(actor)) ends.emplace(start(actor), actor);
      }
      awake_.clear();
      if (ends.empty()) return result();
      const std::int32_t actor = ends.top().second;
      ends.pop();
      finish(actor);
      awake_.push_back(actor);
    }
  }

 private:
  void find_parcels() {
    parcels_ = parcels_of(work_);
    started_.resize(first_.back());
    for (std::int32_t p = 0; const Parcel& parcel : parcels_) {
      std::int32_t& left = ends_left_.emplace_back(0);
      for (const Position end : {parcel.send, parcel.receive}) {
        if (!end) continue;
        started_[number(end)].push_back(p);
        ++left;
      }
      ++p;
    }
  }

  std::size_t number(Position p) const { return first_[at(p.actor)] + at(p.index); }
  std::int32_t& missing(Position p) { return missing_[number(p)]; }
  Position head(std::int32_t actor) const { return {actor, done_[at(actor)]}; }

  // Behind the last action of the piece of work that the actor does next.
  std::int32_t piece_end(std::int32_t actor) const {
    const std::vector<Action>& row = rows_[at(actor)];
    const std::int32_t size = static_cast<std::int32_t>(row.size());
    std::int32_t end = done_[at(actor)] + 1;
    while (options_.atomic_pairs && end < size && row[at(end - 1)].fused_with_next) ++end;
    return std::min(end, size);
  }

  // The piece of work that its actor does next.
  bool is_next(Position p) const {
    const std::int32_t next = done_[at(p.actor)];
    return p.index == next || (p.index > next && p.index < piece_end(p.actor));
  }

  bool can_start(std::int32_t actor) {
    Position next = head(actor);
    if (next.index == static_cast<std::int32_t>(rows_[at(actor)].size())) return false;
    for (const std::int32_t end = piece_end(actor); next.index < end; ++next.index) {
      if (missing(next) > 0) return false;
    }
    return true;
  }

  // Returns when the actor can go on. `start` of each action holds when the last transfer for it arrived.
  double start(std::int32_t actor) {
    Position here = head(actor);
    double& now = clock_[at(actor)];
    if (const Kind kind = work_.at(here).kind; is_host_copy(kind) || is_collective(kind)) {
      start_beside(here);
      return now;
    }
    const std::int32_t end = piece_end(actor);
    for (std::int32_t i = here.index; i < end; ++i) now = std::max(now, entry(time_.start, {actor, i}));
    for (; here.index < end; ++here.index) {
      const double time = duration(costs_, options_.disturbance, work_.at(here), actor);
      time_.busy[at(actor)] += time;
      entry(time_.start, here) = now;
      entry(time_.end, here) = now += time;
    }
    return now;
  }

  // On its lane.
  void start_beside(Position here) {
    const Action& action = work_.at(here);
    double& free = lanes_free_[at(here.actor)][is_collective(action.kind)];
    const double begin = entry(time_.start, here) = std::max(free, clock_[at(here.actor)]);
    const double end = entry(time_.end, here) = free = begin + duration(costs_, options_.disturbance, action, here.actor);
    time_.makespan = std::max(time_.makespan, end);
    const auto release = [&](std::int32_t index) {
      if (index < 0) return;
      double& start = entry(time_.start, {here.actor, index});
      start = std::max(start, end);
    };
    if (is_collective(action.kind)) release(follower_[number(here)]);
    for (std::int32_t m = action.microbatch; action.kind == Kind::RELOAD && m < action.microbatch + action.count; ++m)
      release(work_.backward[work_.unit(action.stage, m)].index);
  }

  void finish(std::int32_t actor) {
    const std::int32_t end = piece_end(actor);
    const double ready = entry(time_.end, {actor, end - 1});
    for (Position here = head(actor); here.index < end; ++here.index) finish(here, ready);
  }

  // Ends the action; its transfers may start at `ready`.
  void finish(Position here, double ready) {
    ++done_[at(here.actor)];
    if (options_.record) time_.order.push_back(here);
    const auto arrive = [&](Position use, double arrival) {
      double& start = entry(time_.start, use);
      start = std::max(start, arrival);
      if (--missing(use) == 0 && is_next(use) && can_start(use.actor)) awake_.push_back(use.actor);
    };
    if (!work_.has_transfers()) return links_.send(here, here, -1, ready, arrive);
    for (const std::int32_t p : started_[number(here)]) {
      if (--ends_left_[at(p)] > 0) continue;
      const auto [send, receive, to] = parcels_[at(p)];
      const bool is_late = receive && entry(time_.end, receive) > entry(time_.end, send);
      const Position by = is_late ? receive : send;
      links_.send(work_.user_of(work_.at(send)), by, to, entry(time_.end, by), arrive);
    }
  }

  TableTime result() {
    for (std::size_t a = 0; a < rows_.size(); ++a) {
      if (done_[a] < static_cast<std::int32_t>(rows_[a].size())) fail_stuck(a);
      time_.makespan = std::max(time_.makespan, clock_[a]);
    }
    return std::move(time_);
  }

  [[noreturn]] void fail_stuck(std::size_t actor) {
    invariant(options_.atomic_pairs, "a valid table has no cycle");
    const Action& next = rows_[actor][at(done_[actor])];
    throw Error(concat(text(next), " on actor ", actor, " can never run if fused pairs are one piece of work"),
                {"both of a pair begin when all that both need is there, and end together"},
                "take the pairs apart, or let them run one action after the other");
  }

  const WorkIndex& work_;
  const std::vector<std::vector<Action>>& rows_;
  const TableCosts& costs_;
  const TableOptions& options_;
  const std::vector<std::size_t> first_;           // numbers of actions
  std::vector<std::int32_t> missing_;              // of each action, by number: how many needs of it are still to come from others
  std::vector<std::int32_t> follower_;             // likewise: who in its row waits for it; empty where nothing is sharded
  std::vector<std::int32_t> done_;                 // of each row
  std::vector<double> clock_;                      // of each actor: when its compute can go on
  std::vector<std::array<double, 2>> lanes_free_;  // and its lanes: host copies, collectives; empty where no table needs them
  std::vector<std::int32_t> awake_;                // actors that may be able to go on
  // Where the table has sends: all that they send, how many of its ends have not been come to, and what each action starts, by number.
  std::vector<Parcel> parcels_;
  std::vector<std::int32_t> ends_left_;
  std::vector<std::vector<std::int32_t>> started_;
  TableTime time_;
  Links links_;
};

}  // namespace

TableCosts uniform_costs(std::int32_t stages, const UnitCosts& costs, double share) {
  StageCosts of;
  of.of(Kind::F) = costs.forward;
  of.of(Kind::B) = costs.backward;
  of.of(Kind::I) = costs.input;
  of.of(Kind::W) = costs.weight;
  of.of(Kind::R) = costs.recompute.value_or(costs.forward);
  of.of(Kind::OFFLOAD) = of.of(Kind::RELOAD) = costs.offload;
  of.of(Kind::UNSHARD) = costs.gather;
  of.of(Kind::REDUCE_GRAD) = costs.reduce;
  for (double& time : of.time) time *= share;
  of.forward_bytes = of.backward_bytes = of.weight_bytes = of.gradient_bytes = costs.bytes;
  of.live = share;
  of.kept = share * costs.kept;
  of.parameters = share * costs.parameters;
  return {std::vector<StageCosts>(at(stages), of)};
}

TableCosts uniform_costs(const Schedule& schedule) {
  const std::int32_t stages = schedule.stages();
  TableCosts out = uniform_costs(stages);
  for (std::int32_t number = 0; number < stages; ++number)
    if (const std::size_t stage = at(part_of(number, schedule.slices, schedule.blocks).stage); stage < schedule.forward_times.size())
      for (double& time : out.stages[number].time) time *= schedule.forward_times[stage];
  return out;
}

double TableTime::bubble() const {
  const double total = static_cast<double>(busy.size()) * makespan;
  return total > 0 ? 1 - std::accumulate(busy.begin(), busy.end(), 0.0) / total : 0;
}

TableTime time_table(const WorkIndex& work, const TableCosts& costs, const TableOptions& options) {
  invariant(costs.stages.size() >= work.shape->predecessors.size(), "costs of every stage");
  Pass pass(work, costs, options);
  TableTime time = has_medium(options.network) ? pass.run_in_time() : pass.run();
  fill_peaks(work, costs, time);
  return time;
}

TableTime time_table(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableOptions& options) {
  return time_table(index_work(schedule, shape, schedule.microbatches()), costs, options);
}

double dependency_bound(const Schedule& schedule, const StageShape& shape, const TableCosts& costs, const TableOptions& options) {
  const WorkIndex work = index_work(schedule, shape, schedule.microbatches());
  std::vector<std::vector<double>> end;
  for (const auto& row : schedule.actors) end.emplace_back(row.size());
  double bound = 0;
  walk(work, [&](Position here) {
    const Action& action = work.at(here);
    double start = 0;
    for_each_need(work, action, [&](Position need) {
      double there = entry(end, need);
      if (need.actor != here.actor) {
        const Action& from = work.at(is_send(work.at(need).kind) ? work.user_of(work.at(need)) : need);
        const Link& link = options.network.at(need.actor, here.actor);
        // Added one after the other as a transfer's times are, so that rounding keeps the bound a bound.
        const std::int32_t stage = from.kind == Kind::F ? from.stage : action.stage;
        double bytes = kInfinity;  // at least: of one of the micro-batches that may need it
        for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m)
          bytes = std::min(bytes, use_bytes(costs, from, stage, m));
        there += bytes / link.bandwidth;
        there += link.latency;
      }
      start = std::max(start, there);
    });
    entry(end, here) = start + duration(costs, options.disturbance, action, here.actor);
    bound = std::max(bound, entry(end, here));
  });
  return bound;
}

}  // namespace penstock
