#include "batch/module_jobs.h"

#include <algorithm>

namespace penstock {

ModuleJobs::ModuleJobs(const ModuleProblem& problem)
    : ranks(static_cast<std::size_t>(problem.ranks)), most_live(static_cast<std::size_t>(problem.most_live)) {
  for (std::size_t m = 0; m < problem.micro_batches.size(); ++m) {
    std::vector<std::size_t>& own = parts.emplace_back();
    for (const double time : problem.micro_batches[m].parts) {
      own.push_back(segments.size());
      segments.push_back({m, false, time});
    }
    backbones.push_back(segments.size());
    segments.push_back({m, true, problem.micro_batches[m].backbone});
  }
}

ModuleState::ModuleState(const ModuleJobs& jobs)
    : step(jobs.segments.size(), 0),
      ready(jobs.segments.size(), 0),
      gathered(jobs.parts.size(), 0),
      free(jobs.ranks, 0),
      live(jobs.ranks, 0),
      last_backward(jobs.ranks, true) {
  for (std::size_t m = 0; m < jobs.parts.size(); ++m) {
    left.push_back(jobs.parts[m].size());
    if (left[m] > 0) ready[jobs.backbones[m]] = kInfinity;
  }
}

double ModuleState::earliest(const ModuleJobs& jobs, std::size_t segment) const {
  return step[segment] == 2 * jobs.ranks ? kInfinity : std::max(ready[segment], free[jobs.rank_of(step[segment])]);
}

void ModuleState::start(const ModuleJobs& jobs, std::size_t segment) {
  const auto [m, backbone, time] = jobs.segments[segment];
  const std::size_t rank = jobs.rank_of(step[segment]);
  const bool backward = jobs.is_backward(step[segment]);
  const double end = earliest(jobs, segment) + jobs.time_of(segment, step[segment]);
  free[rank] = ready[segment] = end;
  last_backward[rank] = backward;
  live[rank] += backward ? std::size_t{0} - 1 : 1;
  ++step[segment];
  if (!backbone && step[segment] == jobs.ranks) {
    ready[segment] = kInfinity;
    gathered[m] = std::max(gathered[m], end);
    if (--left[m] == 0) ready[jobs.backbones[m]] = gathered[m];
  }
  if (backbone && step[segment] == 2 * jobs.ranks)
    for (const std::size_t part : jobs.parts[m]) ready[part] = end;
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
      const std::size_t rank = jobs.rank_of(k);
      const double time = jobs.time_of(segment, k);
      work[rank] += time;
      head[rank] = std::min(head[rank], begin);
      begin += time;
      rest -= time;
      tail[rank] = std::min(tail[rank], rest);
    }
    return begin;
  }
};

}  // namespace

// On each rank all that is left there runs one after the other, behind the least way to any of it and ahead of the least way from any of it
// to the end.
double ModuleState::bound(const ModuleJobs& jobs) const {
  const std::size_t steps = 2 * jobs.ranks;
  RestOfRanks rests{jobs, std::vector<double>(jobs.ranks, 0), std::vector<double>(jobs.ranks, kInfinity),
                    std::vector<double>(jobs.ranks, kInfinity), makespan()};
  const auto begin_of = [&](std::size_t segment, double otherwise) {
    const double begin = earliest(jobs, segment);
    return begin == kInfinity ? otherwise : begin;
  };
  const auto forwards = static_cast<double>(jobs.ranks);
  for (std::size_t m = 0; m < jobs.parts.size(); ++m) {
    const std::size_t backbone = jobs.backbones[m];
    double longest = 0, begin = gathered[m];
    for (const std::size_t part : jobs.parts[m]) longest = std::max(longest, jobs.segments[part].time);
    const double backwards = 2 * forwards * longest, behind_parts = 3 * forwards * jobs.segments[backbone].time + backwards;
    for (const std::size_t part : jobs.parts[m])
      if (step[part] < jobs.ranks) begin = std::max(begin, rests.count(part, step[part], jobs.ranks, begin_of(part, 0), behind_parts));
    const double end = rests.count(backbone, step[backbone], steps, std::max(begin, begin_of(backbone, 0)), backwards);
    for (const std::size_t part : jobs.parts[m])
      rests.count(part, std::max(step[part], jobs.ranks), steps, step[backbone] < steps ? end : begin_of(part, 0), 0);
  }
  double most = rests.most;
  for (std::size_t rank = 0; rank < jobs.ranks; ++rank)
    if (rests.work[rank] > 0) most = std::max(most, std::max(free[rank], rests.head[rank]) + rests.work[rank] + rests.tail[rank]);
  return most;
}

}  // namespace penstock
