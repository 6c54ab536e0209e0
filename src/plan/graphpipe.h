// What GraphPipe's planner chooses from.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/plan.h"

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

// `seconds`: of searching; every threshold that is begun is finished.
GraphpipePlans graphpipe_plans(const PlanProblem& problem, double seconds);

}  // namespace penstock
