// What `best` and `exact` share: where to begin, and what to say when nothing fits.
#pragma once

#include "plan/improve_plan.h"

namespace penstock {

struct FoundStages {
  std::string by;  // how they were found
  std::vector<PlanStage> stages;
  PlanScore score;
};

// Stages whose step is short: of `starts` and the simple ones, the best few improved. By score; not empty.
std::vector<FoundStages> improved_stages(const PlanProblem& problem, std::vector<FoundStages> starts, std::uint64_t seed,
                                         Deadline deadline);

// Throws Error that nothing fits, with the smallest memory that would do: of small graphs it is proven, of others it is one that would.
// Returns where, against expectation, something fits.
std::vector<PlanStage> fail_without_memory(const PlanProblem& problem, const std::vector<PlanStage>& nearly, std::uint64_t seed,
                                           bool proven, Deadline deadline);

}  // namespace penstock
