// SPDX-License-Identifier: Apache-2.0
// The segments of a multi-module batch as jobs: each runs forward over all ranks, in rounds, and then backward over them.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "batch/modules.h"

namespace penstock {

// Step k of a segment of n rounds is its forward on its stage k, or, from n ranks on, its backward on stage 2 n ranks - 1 - k.
struct ModuleJobs {
  struct Segment {
    std::size_t micro_batch = 0;
    bool backbone = false;
    double time = 0;                     // of its forward on a rank, in one round
    std::size_t rounds = 1, before = 0;  // of its own, and of the module before it
  };

  // Backwards compute so many layers again, by segment and stage; none: no layer of any.
  explicit ModuleJobs(const ModuleProblem& problem, const std::vector<std::vector<int>>& again = {});

  std::size_t forwards(std::size_t segment) const { return ranks * segments[segment].rounds; }
  std::size_t steps(std::size_t segment) const { return 2 * forwards(segment); }
  bool is_backward(std::size_t segment, std::size_t step) const { return step >= forwards(segment); }
  // The forward step that this one is or goes back.
  std::size_t forward_of(std::size_t segment, std::size_t step) const {
    return is_backward(segment, step) ? steps(segment) - 1 - step : step;
  }
  std::size_t rank_of(std::size_t segment, std::size_t step) const {
    const std::size_t forward = forward_of(segment, step), place = forward % ranks, round = forward / ranks + segments[segment].before;
    return folded && round % 2 == 1 ? ranks - 1 - place : place;
  }
  double time_of(std::size_t segment, std::size_t step) const {
    const double time = segments[segment].time * (is_backward(segment, step) && !split ? 2 : 1);
    return is_backward(segment, step) && !again.empty() ? time + again[segment][forward_of(segment, step)] : time;
  }
  double held_by(std::size_t segment, std::size_t stage) const { return held.empty() ? 0 : held[segment][stage]; }
  bool is_limited() const { return most_live > 0 || at_once > 0 || !held.empty(); }
  std::size_t runs() const;  // of all segments

  std::size_t ranks = 1, most_live = 0, at_once = 0;
  double room = kInfinity;
  bool folded = false, split = false;
  std::vector<Segment> segments;
  std::vector<std::vector<double>> held, again;  // by segment and stage: what it holds; the time of what its backward computes again
  std::vector<std::vector<std::size_t>> parts;   // by micro-batch
  std::vector<std::size_t> backbones;            // likewise
};

// The progress of all segments. It is the clock of a search that branches: it is copied at every branch, and tells when a run could begin
// that waits; a policy of the engine sees only what can begin now. Tests hold its tables equal to time_table's.
struct ModuleState {
  explicit ModuleState(const ModuleJobs& jobs);

  // When the segment's next step could begin; infinite where it waits for other segments or has ended.
  double earliest(const ModuleJobs& jobs, std::size_t segment) const;
  // Whether the segment's next step, a forward, may run beside what has.
  bool has_room(const ModuleJobs& jobs, std::size_t segment) const;
  // Each returns what it starts.
  ModuleRun start(const ModuleJobs& jobs, std::size_t segment);
  ModuleRun start_weight(const ModuleJobs& jobs, std::size_t rank, std::size_t index);
  double makespan() const;
  // No way to finish from here, where no W waits, takes less.
  double bound(const ModuleJobs& jobs) const;
  // Whether anything of the micro-batch has run, and anything but W waits.
  bool is_open(const ModuleJobs& jobs, std::size_t micro_batch) const;

  std::vector<std::size_t> step;    // by segment: the next
  std::vector<double> ready;        // by segment: from when the next step has all it needs
  std::vector<std::size_t> left;    // by micro-batch: parts whose forwards have not ended
  std::vector<double> gathered;     // by micro-batch: when the last of those that have did
  std::vector<double> free;         // by rank
  std::vector<std::size_t> live;    // by rank: segments between F and B
  std::vector<double> held;         // by rank: what these hold
  std::vector<bool> last_backward;  // by rank
  // By rank: the segments, and their stages, whose W waits.
  std::vector<std::vector<std::pair<std::size_t, std::int32_t>>> weights;
};

}  // namespace penstock
