// SPDX-License-Identifier: Apache-2.0
#include "search/legs.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/invariant.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

constexpr double kGrains = 0x1p35;  // of the largest activation

// Puts needs and sends between legs.
class Wiring {
 public:
  Wiring(const SearchProblem& problem, Legs& legs) : problem_(problem), legs_(legs) {}

  // Legs [first, first + stages) are one route's.
  void connect(std::int32_t first) {
    const std::vector<std::vector<std::int32_t>>& predecessors = problem_.shape.predecessors;
    for (std::size_t s = 0; s < predecessors.size(); ++s) {
      const std::int32_t to = first + static_cast<std::int32_t>(s);
      for (const std::int32_t p : predecessors[s]) {
        const std::int32_t from = first + p;
        leg(to).forward_needs.push_back({from, send(leg(from).forward_sends, from, to, costs(from).forward_bytes, false)});
        if (!leg(to).has_backward) continue;
        if (leg(from).has_backward)
          leg(from).backward_needs.push_back({to, send(leg(to).backward_sends, to, from, costs(from).backward_bytes, true)});
      }
    }
  }

 private:
  StageLeg& leg(std::int32_t i) { return legs_.legs[i]; }
  const StageCosts& costs(std::int32_t i) { return problem_.costs.stages[leg(i).stage]; }

  // One transfer to each actor, with the bytes of all that goes there (an output goes once).
  std::int32_t send(std::vector<LegSend>& sends, std::int32_t from, std::int32_t to, double bytes, bool adds) {
    const std::int32_t a = leg(from).actor, b = leg(to).actor;
    if (a == b) return -1;
    const Link& link = problem_.network.at(a, b);
    const std::int32_t channel = channel_of(a, b, link);
    const double seconds = bytes / link.bandwidth;
    legs_.limited_links = legs_.limited_links || seconds > 0;
    for (LegSend& known : sends) {
      if (slot_actor_[known.slot] != b) continue;
      if (adds) known.seconds += seconds;
      return known.slot;
    }
    sends.push_back({legs_.slots++, channel, seconds, link.latency});
    slot_actor_.push_back(b);
    return sends.back().slot;
  }

  std::int32_t channel_of(std::int32_t a, std::int32_t b, const Link& link) {
    legs_.shared_links = legs_.shared_links || link.medium >= 0;
    const std::pair<std::int32_t, std::int32_t> key = link.medium >= 0 ? std::pair{-1, link.medium} : std::pair{a, b};
    const auto [it, is_new] = channels_.try_emplace(key, legs_.channels);
    legs_.channels += is_new;
    return it->second;
  }

  const SearchProblem& problem_;
  Legs& legs_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> channels_;
  std::vector<std::int32_t> slot_actor_;  // to whom each goes
};

double largest_live(const SearchProblem& problem) {
  double largest = 0;
  for (const StageCosts& stage : problem.costs.stages) largest = std::max(largest, stage.live);
  return largest;
}

StageLeg leg_of(const SearchProblem& problem, const Route& route, std::int32_t stage, double largest) {
  const StageCosts& costs = problem.costs.stages[stage];
  StageLeg leg{};
  leg.stage = stage;
  leg.actor = route.actor_of_stage[stage];
  leg.microbatches = route.microbatches;
  leg.has_backward = problem.shape.has_backward[stage];
  leg.has_weight = leg.has_backward && problem.shape.has_parameters[stage];
  leg.forward = costs.of(Kind::F);
  leg.whole = costs.of(Kind::B);
  leg.input = costs.of(Kind::I);
  leg.weight = leg.has_weight ? costs.of(Kind::W) : 0;
  leg.live = leg.has_backward && largest > 0 ? std::llround(costs.live / largest * kGrains) : 0;
  return leg;
}

}  // namespace

bool Legs::frees(const Step& step) const {
  return step.kind == Kind::W || step.kind == Kind::B || (step.kind == Kind::I && !(*this)[step.leg].has_weight);
}

Legs legs_of(const SearchProblem& problem, const Placement& placement) {
  Legs legs;
  const double largest = largest_live(problem), parts = largest > 0 ? problem.memory_limit / largest * kGrains : kInfinity;
  // A part in 2^35 is rounding; the sum of all legs' parts stays below 2^62.
  legs.limit = parts < 0x1p61 ? std::llround(parts) + 64 : std::int64_t{1} << 61;
  legs.microbatches = problem.microbatches;
  legs.of_step = problem.microbatches / problem.steps;
  legs.staleness = problem.staleness;
  legs.whole = problem.whole;
  legs.split = problem.split;
  legs.of_actor.resize(at(problem.actors));
  Wiring wiring(problem, legs);
  const std::int32_t stages = static_cast<std::int32_t>(problem.shape.predecessors.size());
  for (std::size_t r = 0; r < placement.size(); ++r) {
    const std::int32_t first = legs.size();
    for (std::int32_t s = 0; s < stages; ++s) {
      legs.legs.push_back(leg_of(problem, placement[r], s, largest));
      legs.legs.back().route = static_cast<std::int32_t>(r);
      legs.of_actor[legs.legs.back().actor].push_back(first + s);
    }
    wiring.connect(first);
  }
  return legs;
}

double smallest_limit(const SearchProblem& problem, const Placement& placement) {
  double limit = 0;
  for (const Route& route : placement) {
    std::vector<double> held(at(problem.actors), 0);
    for (std::size_t s = 0; s < problem.shape.predecessors.size(); ++s) {
      if (problem.shape.has_backward[s]) held[route.actor_of_stage[s]] += problem.costs.stages[s].live;
    }
    limit = std::max(limit, *std::max_element(held.begin(), held.end()));
  }
  return limit;
}

Schedule schedule_of(const Legs& legs, const Rows& rows) {
  Schedule schedule;
  schedule.actors.resize(rows.size());
  for (std::size_t a = 0; a < rows.size(); ++a) {
    std::vector<std::int32_t> forwards(legs.legs.size(), 0), backwards(forwards);
    std::vector<std::vector<std::int32_t>> split(legs.legs.size());  // micro-batches whose W is still to come, the last first
    for (const Step& step : rows[a]) {
      const StageLeg& leg = legs[step.leg];
      const std::size_t l = at(step.leg);
      std::int32_t m = 0;
      if (step.kind == Kind::W) {
        m = split[l].front();
        split[l].erase(split[l].begin());
      } else {
        m = leg.microbatches[step.kind == Kind::F ? forwards[l]++ : backwards[l]++];
        if (step.kind == Kind::I) split[l].push_back(m);
      }
      schedule.actors[a].push_back({leg.stage, step.kind, m});
    }
  }
  return schedule;
}

std::optional<Rows> rows_of(const Legs& legs, const Schedule& schedule) {
  // The leg of each stage and micro-batch.
  std::vector<std::vector<std::int32_t>> leg_of;
  for (std::int32_t l = 0; l < legs.size(); ++l) {
    leg_of.resize(std::max(leg_of.size(), at(legs[l].stage) + 1), std::vector<std::int32_t>(at(legs.microbatches), -1));
    for (const std::int32_t m : legs[l].microbatches) leg_of[legs[l].stage][m] = l;
  }
  Rows rows(schedule.actors.size());
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (const Action& action : schedule.actors[a]) {
      if (action.kind == Kind::U) continue;
      if (!is_compute(action.kind)) return {};
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
        const std::int32_t leg = leg_of[action.stage][m];
        if (legs[leg].actor != static_cast<std::int32_t>(a)) return {};
        if (action.kind == Kind::W && !legs[leg].has_weight) continue;
        rows[a].push_back({static_cast<std::int16_t>(leg), action.kind});
      }
    }
  }
  return rows;
}

PartialRun::PartialRun(const Legs& legs)
    : legs_(legs), channel_free_(at(legs.channels)), arrivals_(at(legs.slots_of_all())), live_(legs.of_actor.size()) {
  clear();
}

void PartialRun::clear() {
  counts_.assign(legs_.legs.size(), {});
  free_.assign(legs_.of_actor.size(), 0);
  std::fill(channel_free_.begin(), channel_free_.end(), 0);
  std::fill(live_.begin(), live_.end(), 0);
  log_.clear();
  log_channels_.clear();
}

double PartialRun::ready(Step step) const {
  if (step.kind == Kind::W) return 0;
  const StageLeg& leg = legs_[step.leg];
  const bool forward = step.kind == Kind::F;
  const std::int32_t k = forward ? forwards(step.leg) : backwards(step.leg);
  double ready = 0;
  for (const LegNeed& need : forward ? leg.forward_needs : leg.backward_needs) {
    if ((forward ? forwards(need.leg) : backwards(need.leg)) <= k) return kInfinity;
    if (need.slot >= 0) ready = std::max(ready, arrival(need.slot, k));
  }
  return ready;
}

bool PartialRun::is_next(Step step) const {
  const StageLeg& leg = legs_[step.leg];
  if (step.kind == Kind::F) return forwards(step.leg) < leg.count();
  if (step.kind == Kind::W) return pending_weights(step.leg) > 0;
  if (!leg.has_backward || backwards(step.leg) >= forwards(step.leg)) return false;
  return step.kind != Kind::B || finished(step.leg) >= legs_.summed_before(step.kind, backwards(step.leg));
}

bool PartialRun::fits(Step step) const {
  const StageLeg& leg = legs_[step.leg];
  if (step.kind != Kind::F) return true;
  const bool is_ahead = leg.has_backward && finished(step.leg) < legs_.summed_before(step.kind, forwards(step.leg));
  return !is_ahead && live(leg.actor) + leg.live <= legs_.limit;
}

const std::vector<LegSend>& PartialRun::sends(Step step) const {
  static const std::vector<LegSend> none;
  const StageLeg& leg = legs_[step.leg];
  return step.kind == Kind::F ? leg.forward_sends : step.kind == Kind::W ? none : leg.backward_sends;
}

double PartialRun::append(Step step) {
  const StageLeg& leg = legs_[step.leg];
  const std::int32_t k = step.kind == Kind::F ? forwards(step.leg) : backwards(step.leg);
  double& free = free_[leg.actor];
  log_.push_back({step, free, log_channels_.size()});
  free = std::max(free, ready(step)) + leg.time(step.kind);
  for (const LegSend& send : sends(step)) {
    double& channel = channel_free_[send.channel];
    log_channels_.push_back(channel);
    channel = std::max(channel, free) + send.seconds;
    arrivals_[send.slot * legs_.microbatches + k] = channel + send.latency;
  }
  ++counts_[at(step.leg)].of(step.kind);
  if (step.kind == Kind::F) live_[leg.actor] += leg.live;
  if (legs_.frees(step)) live_[leg.actor] -= leg.live;
  return free;
}

void PartialRun::undo() {
  const Entry entry = log_.back();
  const StageLeg& leg = legs_[entry.step.leg];
  log_.pop_back();
  free_[leg.actor] = entry.free;
  const std::vector<LegSend>& sent = sends(entry.step);
  for (std::size_t i = sent.size(); i-- > 0;) channel_free_[sent[i].channel] = log_channels_[entry.channels + i];
  log_channels_.resize(entry.channels);
  --counts_[at(entry.step.leg)].of(entry.step.kind);
  if (entry.step.kind == Kind::F) live_[leg.actor] -= leg.live;
  if (legs_.frees(entry.step)) live_[leg.actor] += leg.live;
}

double PartialRun::makespan() const {
  return *std::max_element(free_.begin(), free_.end());
}

bool keeps_steps(const Legs& legs, const std::vector<Step>& row) {
  if (legs.of_step == legs.microbatches) return true;  // one step waits for no update
  struct Counts {
    std::int32_t forwards = 0, backwards = 0, summed = 0;
  };
  std::vector<Counts> counts(legs.legs.size());
  return std::all_of(row.begin(), row.end(), [&](const Step& step) {
    Counts& of = counts[at(step.leg)];
    const bool forward = step.kind == Kind::F, late = forward || step.kind == Kind::B;
    std::int32_t& ran = forward ? of.forwards : of.backwards;
    if (late && legs[step.leg].has_backward && of.summed < legs.summed_before(step.kind, ran)) return false;
    if (step.kind != Kind::W) ++ran;
    of.summed += legs.frees(step);
    return true;
  });
}

bool keep_steps(const Legs& legs, const Rows& rows) {
  return std::all_of(rows.begin(), rows.end(), [&](const std::vector<Step>& row) { return keeps_steps(legs, row); });
}

RowTimes time_rows(const Legs& legs, const Rows& rows, PartialRun& run) {
  RowTimes times;
  run.clear();
  times.start.resize(rows.size());
  times.end.resize(rows.size());
  std::size_t left = 0;
  for (std::size_t a = 0; a < rows.size(); ++a) {
    left += rows[a].size();
    times.start[a].reserve(rows[a].size());
    times.end[a].reserve(rows[a].size());
  }
  for (bool moved = true; moved && left > 0;) {
    moved = false;
    for (std::size_t a = 0; a < rows.size(); ++a) {
      for (std::size_t i = times.end[a].size(); i < rows[a].size(); ++i) {
        const Step step = rows[a][i];
        const double ready = run.ready(step);
        if (ready == kInfinity) break;
        times.start[a].push_back(std::max(ready, run.free(legs[step.leg].actor)));
        times.end[a].push_back(run.append(step));
        --left;
        moved = true;
      }
    }
  }
  times.makespan = left > 0 ? kInfinity : run.makespan();
  return times;
}

}  // namespace penstock
