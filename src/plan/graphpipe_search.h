// GraphPipe's dynamic program (2406.17145, section 5): stages of a line, none slower than a target, with the shortest way through them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/numbers.h"
#include "plan/stage_line.h"
#include "plan/time_limit.h"

namespace penstock {

struct LineStage {
  int begin = 0, end = 0;  // positions of the line
  int option = 0;          // of StageCosting::options
};

struct StageTarget {
  double per_sample = 0;         // seconds, at most, of every stage
  double way_limit = kInfinity;  // seconds, at most, of the longest way
  // Samples in flight count against the memory. Without it a stage needs room for one micro-batch only, which is faster to search and a
  // bound.
  bool in_flight = false;
  double memory = kInfinity;
  bool any_way = false;  // the length of the way does not matter
};

// Stages in the order of the line; none where there are none, the time is over or the search would take more than some 500 MB. `states`:
// what the search has looked at is added to it.
std::optional<std::vector<LineStage>> stages_within(const StageLine& line, const StageTarget& target, std::int64_t& states,
                                                    TimeLimit& limit);

}  // namespace penstock
