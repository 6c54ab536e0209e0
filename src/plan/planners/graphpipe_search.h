// SPDX-License-Identifier: Apache-2.0
// GraphPipe's dynamic program (2406.17145, section 5). It finds stages of a line, none slower than a target, with the shortest longest path
// through them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/numbers.h"
#include "cost/time_limit.h"
#include "planners/stage_line.h"

namespace penstock {

struct LineStage {
  int begin = 0, end = 0;  // positions in the line
  int option = 0;          // index into StageCosting::options
};

struct StageTarget {
  double per_sample = 0;          // the most seconds per sample of every stage
  double path_limit = kInfinity;  // the most seconds of the longest path
  // Whether samples in flight count against the memory. If not, a stage needs room for one micro-batch only, which is faster to search and
  // gives a bound.
  bool in_flight = false;
  double memory = kInfinity;
  bool any_path = false;  // whether the length of the path does not matter
};

// The stages in the order of the line; none where there are none, the time is over or the search would take more than some 500 MB. The
// number of states that were looked at is added to `states`.
std::optional<std::vector<LineStage>> stages_within(const StageLine& line, const StageTarget& target, std::int64_t& states,
                                                    TimeLimit& limit);

}  // namespace penstock
