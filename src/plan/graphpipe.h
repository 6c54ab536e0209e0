// What GraphPipe's planner chooses from.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan.h"
#include "plan/time_limit.h"

namespace penstock {

struct GraphpipePlan {
  Plan plan;        // stages and bottleneck (seconds per sample)
  double time = 0;  // of a step, by the formula (iteration_time.h)
};
struct GraphpipePlans {
  // Of rising thresholds for the time per sample; by time. in_a_row: searched as if each node fed the next. squeezed: they fit, if at all,
  // with fewer in flight than the formula takes for granted.
  std::vector<GraphpipePlan> branched, in_a_row, squeezed;
  std::int64_t states = 0;  // looked at by the search
};

// As many as the time allows. Throws Error for more than kMostGraphpipeNodes nodes: lines take memory quadratic in them.
inline constexpr int kMostGraphpipeNodes = 2000;
GraphpipePlans graphpipe_plans(const PlanProblem& problem, TimeLimit& limit);

}  // namespace penstock
