// SPDX-License-Identifier: Apache-2.0
#include "batch/module_jobs.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr double kRoomRounding = 1e-9;  // of the room, that sums of memory may be off

}  // namespace

ModuleJobs::ModuleJobs(const ModuleProblem& problem, const std::vector<std::vector<int>>& layers_again)
    : ranks(static_cast<std::size_t>(problem.ranks)),
      most_live(static_cast<std::size_t>(problem.most_live)),
      at_once(static_cast<std::size_t>(problem.at_once)),
      room(problem.room),
      folded(problem.folded),
      split(problem.split) {
  const auto in_part = static_cast<std::size_t>(problem.part_rounds), in_backbone = static_cast<std::size_t>(problem.backbone_rounds);
  for (std::size_t m = 0; m < problem.micro_batches.size(); ++m) {
    std::vector<std::size_t>& own = parts.emplace_back();
    for (const double time : problem.micro_batches[m].parts) {
      own.push_back(segments.size());
      segments.push_back({m, false, time, in_part, 0});
    }
    backbones.push_back(segments.size());
    segments.push_back({m, true, problem.micro_batches[m].backbone, in_backbone, in_part});
  }
  for (const std::vector<ModuleMemory>& of_segment : problem.memory)
    for (auto& own = held.emplace_back(); const ModuleMemory& memory : of_segment) own.push_back(memory.full);
  for (std::size_t s = 0; s < layers_again.size(); ++s)
    for (auto& own = again.emplace_back(); const int layers : layers_again[s])
      own.push_back(layers > 0 ? layers * segments[s].time / problem.memory[s][own.size()].layers : 0);
}

std::size_t ModuleJobs::runs() const {
  std::size_t out = 0;
  for (std::size_t s = 0; s < segments.size(); ++s) out += steps(s) + (split ? forwards(s) : 0);
  return out;
}

ModuleState::ModuleState(const ModuleJobs& jobs)
    : step(jobs.segments.size(), 0),
      ready(jobs.segments.size(), 0),
      gathered(jobs.parts.size(), 0),
      free(jobs.ranks, 0),
      live(jobs.ranks, 0),
      held(jobs.ranks, 0),
      last_backward(jobs.ranks, true),
      weights(jobs.ranks) {
  for (std::size_t m = 0; m < jobs.parts.size(); ++m) {
    left.push_back(jobs.parts[m].size());
    if (left[m] > 0) ready[jobs.backbones[m]] = kInfinity;
  }
}

double ModuleState::earliest(const ModuleJobs& jobs, std::size_t segment) const {
  return step[segment] == jobs.steps(segment) ? kInfinity : std::max(ready[segment], free[jobs.rank_of(segment, step[segment])]);
}

bool ModuleState::is_open(const ModuleJobs& jobs, std::size_t micro_batch) const {
  std::vector<std::size_t> all = jobs.parts[micro_batch];
  all.push_back(jobs.backbones[micro_batch]);
  return std::ranges::any_of(all, [&](std::size_t s) { return step[s] > 0; }) &&
         std::ranges::any_of(all, [&](std::size_t s) { return step[s] < jobs.steps(s); });
}

bool ModuleState::has_room(const ModuleJobs& jobs, std::size_t segment) const {
  if (const std::size_t own = jobs.segments[segment].micro_batch; jobs.at_once > 0 && !is_open(jobs, own)) {
    std::size_t open = 0;
    for (std::size_t m = 0; m < jobs.parts.size(); ++m) open += is_open(jobs, m);
    if (open >= jobs.at_once) return false;
  }
  const std::size_t rank = jobs.rank_of(segment, step[segment]);
  if (jobs.most_live > 0 && live[rank] >= jobs.most_live) return false;
  return jobs.held.empty() || held[rank] + jobs.held_by(segment, step[segment]) <= jobs.room * (1 + kRoomRounding);
}

ModuleRun ModuleState::start(const ModuleJobs& jobs, std::size_t segment) {
  const auto& [m, backbone, time, rounds, before] = jobs.segments[segment];
  const std::size_t rank = jobs.rank_of(segment, step[segment]);
  const bool backward = jobs.is_backward(segment, step[segment]);
  const ModuleRun run{.segment = static_cast<std::int32_t>(segment),
                      .kind = !backward    ? Kind::F
                              : jobs.split ? Kind::I
                                           : Kind::B,
                      .begin = earliest(jobs, segment),
                      .stage = static_cast<std::int32_t>(jobs.forward_of(segment, step[segment]))};
  const double end = run.begin + jobs.time_of(segment, step[segment]);
  free[rank] = ready[segment] = end;
  last_backward[rank] = backward;
  if (backward && jobs.split) weights[rank].emplace_back(segment, run.stage);
  if (!backward || !jobs.split) {
    live[rank] += backward ? std::size_t{0} - 1 : 1;
    held[rank] += (backward ? -1 : 1) * jobs.held_by(segment, at(run.stage));
  }
  ++step[segment];
  if (!backbone && step[segment] == jobs.forwards(segment)) {
    ready[segment] = kInfinity;
    gathered[m] = std::max(gathered[m], end);
    if (--left[m] == 0) ready[jobs.backbones[m]] = gathered[m];
  }
  if (backbone && step[segment] == jobs.steps(segment))
    for (const std::size_t part : jobs.parts[m]) ready[part] = end;
  return run;
}

ModuleRun ModuleState::start_weight(const ModuleJobs& jobs, std::size_t rank, std::size_t index) {
  const auto [segment, stage] = weights[rank][index];
  const ModuleRun run{.segment = static_cast<std::int32_t>(segment), .kind = Kind::W, .begin = free[rank], .stage = stage};
  free[rank] += jobs.segments[segment].time;
  --live[rank];
  held[rank] -= jobs.held_by(segment, at(stage));
  weights[rank].erase(weights[rank].begin() + static_cast<std::ptrdiff_t>(index));
  return run;
}

double ModuleState::makespan() const {
  return *std::max_element(free.begin(), free.end());
}

namespace {

// By rank: the work that is left, the earliest begin of any of it, and the least that follows any of it.
struct RestOfRanks {
  const ModuleJobs& jobs;
  std::vector<double> work, head, tail;
  double most = 0;  // a bound by chains of runs alone

  // Counts a segment's steps [from, to), which begin at `begin` at the earliest and have `after` behind them; returns their end.
  double count(std::size_t segment, std::size_t from, std::size_t to, double begin, double after) {
    double rest = after;
    for (std::size_t k = from; k < to; ++k) rest += jobs.time_of(segment, k);
    most = std::max(most, begin + rest);
    for (std::size_t k = from; k < to; ++k) {
      const std::size_t rank = jobs.rank_of(segment, k);
      const double time = jobs.time_of(segment, k);
      const bool has_weight = jobs.split && jobs.is_backward(segment, k);
      work[rank] += has_weight ? 2 * time : time;
      head[rank] = std::min(head[rank], begin);
      begin += time;
      rest -= time;
      tail[rank] = has_weight ? 0 : std::min(tail[rank], rest);
    }
    return begin;
  }
};

}  // namespace

// On each rank all that is left there runs one after the other, behind the least way to any of it and ahead of the least way from any of it
// to the end.
double ModuleState::bound(const ModuleJobs& jobs) const {
  RestOfRanks rests{jobs, std::vector<double>(jobs.ranks, 0), std::vector<double>(jobs.ranks, kInfinity),
                    std::vector<double>(jobs.ranks, kInfinity), makespan()};
  const auto begin_of = [&](std::size_t segment, double otherwise) {
    const double begin = earliest(jobs, segment);
    return begin == kInfinity ? otherwise : begin;
  };
  // The time of all its forwards.
  const auto way = [&](std::size_t segment) { return static_cast<double>(jobs.forwards(segment)) * jobs.segments[segment].time; };
  for (std::size_t m = 0; m < jobs.parts.size(); ++m) {
    const std::size_t backbone = jobs.backbones[m];
    double longest = 0, begin = gathered[m];
    for (const std::size_t part : jobs.parts[m]) longest = std::max(longest, way(part));
    const double backwards = 2 * longest, behind_parts = 3 * way(backbone) + backwards;
    for (const std::size_t part : jobs.parts[m])
      if (const std::size_t forwards = jobs.forwards(part); step[part] < forwards)
        begin = std::max(begin, rests.count(part, step[part], forwards, begin_of(part, 0), behind_parts));
    const double end = rests.count(backbone, step[backbone], jobs.steps(backbone), std::max(begin, begin_of(backbone, 0)), backwards);
    const bool backbone_waits = step[backbone] < jobs.steps(backbone);
    for (const std::size_t part : jobs.parts[m])
      rests.count(part, std::max(step[part], jobs.forwards(part)), jobs.steps(part), backbone_waits ? end : begin_of(part, 0), 0);
  }
  double most = rests.most;
  for (std::size_t rank = 0; rank < jobs.ranks; ++rank)
    if (rests.work[rank] > 0) most = std::max(most, std::max(free[rank], rests.head[rank]) + rests.work[rank] + rests.tail[rank]);
  return most;
}

}  // namespace penstock
