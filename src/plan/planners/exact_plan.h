// SPDX-License-Identifier: Apache-2.0
// Finds the best plan of a small graph by trying all.
#pragma once

#include <optional>

#include "planners/improve_plan.h"

namespace penstock {

inline constexpr int kExactNodes = 12, kExactDevices = 8;

struct ExactResult {
  std::vector<PlanStage> stages;  // empty: none is better than `start`
  PlanScore score;                // score of the best plan, `start` included
  bool finished = false;          // whether the search ended within the limit: then no plan has a better score, but for a part in a billion
  double bound = 0;               // where finished, a lower bound of time: no plan with any order or possible size takes less
};

// Branch and bound over the splits of the nodes into stages that do not feed each other in circles, the devices and replicas of each stage,
// its ways to run and the size of its micro-batches. `start` is a plan whose score is to be beaten; empty: any plan that fits. The graph
// has at most kExactNodes nodes and the cluster at most kExactDevices devices.
ExactResult exact_stages(const PlanProblem& problem, const std::vector<PlanStage>& start, PlanGoal goal, TimeLimit& limit);

// Improves a plan of few devices: goes to a neighbouring split while its best devices, ways and sizes are better than `best`. Where no
// neighbour is, the stages stay as they are.
inline constexpr int kPolishNodes = 64, kPolishDevices = 4;
std::vector<PlanStage> polish_stages(const PlanProblem& problem, std::vector<PlanStage> stages, const PlanScore& best, TimeLimit& limit);

}  // namespace penstock
