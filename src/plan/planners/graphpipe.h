// SPDX-License-Identifier: Apache-2.0
// The candidates from which GraphPipe's planner chooses.
#pragma once

#include <cstdint>
#include <vector>

#include "cost/time_limit.h"
#include "penstock/plan.h"

namespace penstock {

struct GraphpipePlan {
  Plan plan;        // stages and bottleneck (seconds per sample)
  double time = 0;  // of a step, by the formula (iteration_time.h)
  double lack = 0;  // share of the memory that is missing, summed over the stages
};
struct GraphpipePlans {
  // Plans for rising targets of the time per sample, sorted by time. branched: the best one improved too. in_a_row: searched as if each
  // node fed the next. squeezed: plans that fit, if at all, with fewer micro-batches in flight than the formula assumes.
  std::vector<GraphpipePlan> branched, in_a_row, squeezed;
  std::int64_t states = 0;  // states that the search has looked at
};

// Finds as many plans as the time allows. Throws Error for more than kMostGraphpipeNodes nodes: lines take memory quadratic in them.
inline constexpr int kMostGraphpipeNodes = 2000;
GraphpipePlans graphpipe_plans(const PlanProblem& problem, TimeLimit& limit);

}  // namespace penstock
