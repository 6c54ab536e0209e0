// The segments of a multi-module batch as jobs: each runs forward over all ranks and then backward over them.
#pragma once

#include <cstddef>
#include <vector>

#include "batch/modules.h"

namespace penstock {

// Step k of a segment is its forward on rank k, or, from `ranks` on, its backward on rank 2 ranks - 1 - k.
struct ModuleJobs {
  struct Segment {
    std::size_t micro_batch = 0;
    bool backbone = false;
    double time = 0;  // of its forward on a rank
  };

  explicit ModuleJobs(const ModuleProblem& problem);

  std::size_t rank_of(std::size_t step) const { return step < ranks ? step : 2 * ranks - 1 - step; }
  bool is_backward(std::size_t step) const { return step >= ranks; }
  double time_of(std::size_t segment, std::size_t step) const { return segments[segment].time * (is_backward(step) ? 2 : 1); }

  std::size_t ranks = 1, most_live = 0;
  std::vector<Segment> segments;
  std::vector<std::vector<std::size_t>> parts;  // by micro-batch
  std::vector<std::size_t> backbones;           // likewise
};

// How far all segments have come.
struct ModuleState {
  explicit ModuleState(const ModuleJobs& jobs);

  // When the segment's next step could begin; infinite where it waits for other segments or has ended.
  double earliest(const ModuleJobs& jobs, std::size_t segment) const;
  void start(const ModuleJobs& jobs, std::size_t segment);
  double makespan() const;
  // No way to finish from here takes less.
  double bound(const ModuleJobs& jobs) const;

  std::vector<std::size_t> step;    // by segment: the next
  std::vector<double> ready;        // by segment: from when the next step has all it needs
  std::vector<std::size_t> left;    // by micro-batch: parts whose forwards have not ended
  std::vector<double> gathered;     // by micro-batch: when the last of those that have did
  std::vector<double> free;         // by rank
  std::vector<std::size_t> live;    // by rank: segments between F and B
  std::vector<bool> last_backward;  // by rank
};

}  // namespace penstock
