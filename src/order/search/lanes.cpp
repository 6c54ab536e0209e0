#include "search/lanes.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/invariant.h"
#include "schedule/kinds.h"

namespace penstock {
namespace {

constexpr double kGrains = 0x1p35;  // of the largest activation

// Puts needs and sends between lanes.
class Wiring {
 public:
  Wiring(const SearchProblem& problem, Lanes& lanes) : problem_(problem), lanes_(lanes) {}

  // Lanes [first, first + stages) are one route's.
  void connect(std::int32_t first) {
    const std::vector<std::vector<std::int32_t>>& predecessors = problem_.shape.predecessors;
    for (std::size_t s = 0; s < predecessors.size(); ++s) {
      const std::int32_t to = first + static_cast<std::int32_t>(s);
      for (const std::int32_t p : predecessors[s]) {
        const std::int32_t from = first + p;
        lane(to).forward_needs.push_back({from, send(lane(from).forward_sends, from, to, costs(from).forward_bytes, false)});
        if (!lane(to).has_backward) continue;
        if (lane(from).has_backward)
          lane(from).backward_needs.push_back({to, send(lane(to).backward_sends, to, from, costs(from).backward_bytes, true)});
      }
    }
  }

 private:
  StageLane& lane(std::int32_t i) { return lanes_.lanes[i]; }
  const StageCosts& costs(std::int32_t i) { return problem_.costs.stages[lane(i).stage]; }

  // One transfer to each actor, with the bytes of all that goes there (an output goes once).
  std::int32_t send(std::vector<LaneSend>& sends, std::int32_t from, std::int32_t to, double bytes, bool adds) {
    const std::int32_t a = lane(from).actor, b = lane(to).actor;
    if (a == b) return -1;
    const Link& link = problem_.network.at(a, b);
    const std::int32_t channel = channel_of(a, b, link);
    const double seconds = bytes / link.bandwidth;
    lanes_.limited_links = lanes_.limited_links || seconds > 0;
    for (LaneSend& known : sends) {
      if (slot_actor_[known.slot] != b) continue;
      if (adds) known.seconds += seconds;
      return known.slot;
    }
    sends.push_back({lanes_.slots++, channel, seconds, link.latency});
    slot_actor_.push_back(b);
    return sends.back().slot;
  }

  std::int32_t channel_of(std::int32_t a, std::int32_t b, const Link& link) {
    lanes_.shared_links = lanes_.shared_links || link.medium >= 0;
    const std::pair<std::int32_t, std::int32_t> key = link.medium >= 0 ? std::pair{-1, link.medium} : std::pair{a, b};
    const auto [it, is_new] = channels_.try_emplace(key, lanes_.channels);
    lanes_.channels += is_new;
    return it->second;
  }

  const SearchProblem& problem_;
  Lanes& lanes_;
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> channels_;
  std::vector<std::int32_t> slot_actor_;  // to whom each goes
};

double largest_live(const SearchProblem& problem) {
  double largest = 0;
  for (const StageCosts& stage : problem.costs.stages) largest = std::max(largest, stage.live);
  return largest;
}

StageLane lane_of(const SearchProblem& problem, const Route& route, std::int32_t stage, double largest) {
  const StageCosts& costs = problem.costs.stages[stage];
  StageLane lane{};
  lane.stage = stage;
  lane.actor = route.actor_of_stage[stage];
  lane.microbatches = route.microbatches;
  lane.has_backward = problem.shape.has_backward[stage];
  lane.has_weight = lane.has_backward && problem.shape.has_parameters[stage];
  lane.forward = costs.of(Kind::F);
  lane.whole = costs.of(Kind::B);
  lane.input = costs.of(Kind::I);
  lane.weight = lane.has_weight ? costs.of(Kind::W) : 0;
  lane.live = lane.has_backward && largest > 0 ? std::llround(costs.live / largest * kGrains) : 0;
  return lane;
}

}  // namespace

bool Lanes::frees(const Step& step) const {
  return step.kind == Kind::W || step.kind == Kind::B || (step.kind == Kind::I && !(*this)[step.lane].has_weight);
}

Lanes lanes_of(const SearchProblem& problem, const Placement& placement) {
  Lanes lanes;
  const double largest = largest_live(problem), parts = largest > 0 ? problem.memory_limit / largest * kGrains : kInfinity;
  // A part in 2^35 is rounding; the sum of all lanes' parts stays below 2^62.
  lanes.limit = parts < 0x1p61 ? std::llround(parts) + 64 : std::int64_t{1} << 61;
  lanes.microbatches = problem.microbatches;
  lanes.of_step = problem.microbatches / problem.steps;
  lanes.staleness = problem.staleness;
  lanes.whole = problem.whole;
  lanes.split = problem.split;
  lanes.of_actor.resize(at(problem.actors));
  Wiring wiring(problem, lanes);
  const std::int32_t stages = static_cast<std::int32_t>(problem.shape.predecessors.size());
  for (std::size_t r = 0; r < placement.size(); ++r) {
    const std::int32_t first = lanes.size();
    for (std::int32_t s = 0; s < stages; ++s) {
      lanes.lanes.push_back(lane_of(problem, placement[r], s, largest));
      lanes.lanes.back().route = static_cast<std::int32_t>(r);
      lanes.of_actor[lanes.lanes.back().actor].push_back(first + s);
    }
    wiring.connect(first);
  }
  return lanes;
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

Schedule schedule_of(const Lanes& lanes, const Rows& rows) {
  Schedule schedule;
  schedule.actors.resize(rows.size());
  for (std::size_t a = 0; a < rows.size(); ++a) {
    std::vector<std::int32_t> forwards(lanes.lanes.size(), 0), backwards(forwards);
    std::vector<std::vector<std::int32_t>> split(lanes.lanes.size());  // micro-batches whose W is still to come, the last first
    for (const Step& step : rows[a]) {
      const StageLane& lane = lanes[step.lane];
      const std::size_t l = at(step.lane);
      std::int32_t m = 0;
      if (step.kind == Kind::W) {
        m = split[l].front();
        split[l].erase(split[l].begin());
      } else {
        m = lane.microbatches[step.kind == Kind::F ? forwards[l]++ : backwards[l]++];
        if (step.kind == Kind::I) split[l].push_back(m);
      }
      schedule.actors[a].push_back({lane.stage, step.kind, m});
    }
  }
  return schedule;
}

std::optional<Rows> rows_of(const Lanes& lanes, const Schedule& schedule) {
  // The lane of each stage and micro-batch.
  std::vector<std::vector<std::int32_t>> lane_of;
  for (std::int32_t l = 0; l < lanes.size(); ++l) {
    lane_of.resize(std::max(lane_of.size(), at(lanes[l].stage) + 1), std::vector<std::int32_t>(at(lanes.microbatches), -1));
    for (const std::int32_t m : lanes[l].microbatches) lane_of[lanes[l].stage][m] = l;
  }
  Rows rows(schedule.actors.size());
  for (std::size_t a = 0; a < rows.size(); ++a) {
    for (const Action& action : schedule.actors[a]) {
      if (action.kind == Kind::U) continue;
      if (!is_compute(action.kind)) return {};
      for (std::int32_t m = action.microbatch; m < action.microbatch + action.count; ++m) {
        const std::int32_t lane = lane_of[action.stage][m];
        if (lanes[lane].actor != static_cast<std::int32_t>(a)) return {};
        if (action.kind == Kind::W && !lanes[lane].has_weight) continue;
        rows[a].push_back({static_cast<std::int16_t>(lane), action.kind});
      }
    }
  }
  return rows;
}

PartialRun::PartialRun(const Lanes& lanes)
    : lanes_(lanes), channel_free_(at(lanes.channels)), arrivals_(at(lanes.slots_of_all())), live_(lanes.of_actor.size()) {
  clear();
}

void PartialRun::clear() {
  counts_.assign(lanes_.lanes.size(), {});
  free_.assign(lanes_.of_actor.size(), 0);
  std::fill(channel_free_.begin(), channel_free_.end(), 0);
  std::fill(live_.begin(), live_.end(), 0);
  log_.clear();
  log_channels_.clear();
}

double PartialRun::ready(Step step) const {
  if (step.kind == Kind::W) return 0;
  const StageLane& lane = lanes_[step.lane];
  const bool forward = step.kind == Kind::F;
  const std::int32_t k = forward ? forwards(step.lane) : backwards(step.lane);
  double ready = 0;
  for (const LaneNeed& need : forward ? lane.forward_needs : lane.backward_needs) {
    if ((forward ? forwards(need.lane) : backwards(need.lane)) <= k) return kInfinity;
    if (need.slot >= 0) ready = std::max(ready, arrival(need.slot, k));
  }
  return ready;
}

bool PartialRun::is_next(Step step) const {
  const StageLane& lane = lanes_[step.lane];
  if (step.kind == Kind::F) return forwards(step.lane) < lane.count();
  if (step.kind == Kind::W) return pending_weights(step.lane) > 0;
  if (!lane.has_backward || backwards(step.lane) >= forwards(step.lane)) return false;
  return step.kind != Kind::B || finished(step.lane) >= lanes_.summed_before(step.kind, backwards(step.lane));
}

bool PartialRun::fits(Step step) const {
  const StageLane& lane = lanes_[step.lane];
  if (step.kind != Kind::F) return true;
  const bool is_ahead = lane.has_backward && finished(step.lane) < lanes_.summed_before(step.kind, forwards(step.lane));
  return !is_ahead && live(lane.actor) + lane.live <= lanes_.limit;
}

const std::vector<LaneSend>& PartialRun::sends(Step step) const {
  static const std::vector<LaneSend> none;
  const StageLane& lane = lanes_[step.lane];
  return step.kind == Kind::F ? lane.forward_sends : step.kind == Kind::W ? none : lane.backward_sends;
}

double PartialRun::append(Step step) {
  const StageLane& lane = lanes_[step.lane];
  const std::int32_t k = step.kind == Kind::F ? forwards(step.lane) : backwards(step.lane);
  double& free = free_[lane.actor];
  log_.push_back({step, free, log_channels_.size()});
  free = std::max(free, ready(step)) + lane.time(step.kind);
  for (const LaneSend& send : sends(step)) {
    double& channel = channel_free_[send.channel];
    log_channels_.push_back(channel);
    channel = std::max(channel, free) + send.seconds;
    arrivals_[send.slot * lanes_.microbatches + k] = channel + send.latency;
  }
  ++counts_[at(step.lane)].of(step.kind);
  if (step.kind == Kind::F) live_[lane.actor] += lane.live;
  if (lanes_.frees(step)) live_[lane.actor] -= lane.live;
  return free;
}

void PartialRun::undo() {
  const Entry entry = log_.back();
  const StageLane& lane = lanes_[entry.step.lane];
  log_.pop_back();
  free_[lane.actor] = entry.free;
  const std::vector<LaneSend>& sent = sends(entry.step);
  for (std::size_t i = sent.size(); i-- > 0;) channel_free_[sent[i].channel] = log_channels_[entry.channels + i];
  log_channels_.resize(entry.channels);
  --counts_[at(entry.step.lane)].of(entry.step.kind);
  if (entry.step.kind == Kind::F) live_[lane.actor] -= lane.live;
  if (lanes_.frees(entry.step)) live_[lane.actor] += lane.live;
}

double PartialRun::makespan() const {
  return *std::max_element(free_.begin(), free_.end());
}

bool keeps_steps(const Lanes& lanes, const std::vector<Step>& row) {
  if (lanes.of_step == lanes.microbatches) return true;  // one step waits for no update
  struct Counts {
    std::int32_t forwards = 0, backwards = 0, summed = 0;
  };
  std::vector<Counts> counts(lanes.lanes.size());
  return std::all_of(row.begin(), row.end(), [&](const Step& step) {
    Counts& of = counts[at(step.lane)];
    const bool forward = step.kind == Kind::F, late = forward || step.kind == Kind::B;
    std::int32_t& ran = forward ? of.forwards : of.backwards;
    if (late && lanes[step.lane].has_backward && of.summed < lanes.summed_before(step.kind, ran)) return false;
    if (step.kind != Kind::W) ++ran;
    of.summed += lanes.frees(step);
    return true;
  });
}

bool keep_steps(const Lanes& lanes, const Rows& rows) {
  return std::all_of(rows.begin(), rows.end(), [&](const std::vector<Step>& row) { return keeps_steps(lanes, row); });
}

RowTimes time_rows(const Lanes& lanes, const Rows& rows, PartialRun& run) {
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
        times.start[a].push_back(std::max(ready, run.free(lanes[step.lane].actor)));
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
