// The best plan of a small graph, by trying all.
#pragma once

#include <optional>

#include "plan/improve_plan.h"

namespace penstock {

inline constexpr int kExactNodes = 12, kExactDevices = 8;

struct ExactResult {
  std::vector<PlanStage> stages;  // empty: none is better than `start`
  PlanScore score;                // of the best, `start` included
  bool finished = false;          // within the limit: no plan has a better score, but for a part in a billion
  double bound = 0;               // of time, where finished: no plan of any order or possible size takes less
};

// Branch and bound over the splits of the nodes into stages that do not feed each other in circles, the devices and replicas of each, its
// ways and the size of its micro-batches. `start`: a plan whose score is to be beaten; empty: any that fits. Of at most kExactNodes nodes
// and kExactDevices devices.
ExactResult exact_stages(const PlanProblem& problem, const std::vector<PlanStage>& start, PlanGoal goal, TimeLimit& limit);

// Of few devices: goes to neighbouring splits while the best devices, ways and sizes of one are better than `best`. Where they never
// are, the stages stay.
inline constexpr int kPolishNodes = 64, kPolishDevices = 4;
std::vector<PlanStage> polish_stages(const PlanProblem& problem, std::vector<PlanStage> stages, const PlanScore& best, TimeLimit& limit);

}  // namespace penstock
