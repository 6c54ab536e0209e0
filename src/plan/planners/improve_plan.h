// SPDX-License-Identifier: Apache-2.0
// Plans to begin with, and small changes that make them better.
#pragma once

#include <functional>

#include "cost/evaluate.h"
#include "cost/time_limit.h"

namespace penstock {

enum class PlanGoal {
  time,    // the shortest step within the devices' memory
  memory,  // the least memory that devices with less would need; 0: it fits
};

// The first is better than the second if it is less.
struct PlanScore {
  double lack = 0;   // of time: share of the memory that is missing, summed over the stages
  double value = 0;  // seconds of a step, or bytes
  auto operator<=>(const PlanScore&) const = default;
};
PlanScore score_of(const PlanFigures& figures, PlanGoal goal);

// For each node the way of this degree that is fastest, or holds least; -1: it has none.
std::vector<int> choices_of(const PlanGraph& graph, int degree, bool lean, int samples);
// A topological order that follows a branch to its end before it begins the next.
std::vector<int> branch_order(const PlanGraph& graph);
// The fastest `count`, in the cluster's order.
std::vector<int> fastest_devices(const ClusterSpec& cluster, int count);
// Numbers of stages to try: all of few, fewer and fewer of many.
std::vector<int> stage_counts(int most);

// Pieces of topological orders with equal loads, for any number of stages: in the nodes' order and branch by branch, of each size of
// micro-batches, with spare devices as replicas. The order of the devices is the cluster's. Not all fit; as many as the time allows, one at
// least where the nodes have a number of devices in common that the cluster has.
std::vector<std::vector<PlanStage>> starting_stages(const PlanProblem& problem, TimeLimit& limit);

struct ImproveOptions {
  PlanGoal goal = PlanGoal::time;
  std::uint64_t seed = 0;
  int tries = 0;
  // The score by which stages are compared, where that is not the goal's in simulation: its value is infinite for stages that are no plan.
  std::function<PlanScore(const std::vector<PlanStage>&)> score = {};
};
// By cooling: moves nodes and what comes before or after them to another stage, splits, merges,
// exchanges devices, changes replicas, sizes of micro-batches and ways; never worse than `stages`.
std::vector<PlanStage> improve_stages(const PlanProblem& problem, std::vector<PlanStage> stages, const ImproveOptions& options,
                                      TimeLimit& limit);

// Nodes with equal_batches are in stages of one size.
bool sizes_agree(const PlanProblem& problem, const std::vector<PlanStage>& stages);

}  // namespace penstock
