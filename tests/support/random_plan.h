// SPDX-License-Identifier: Apache-2.0
// Random planning problems and random plans for them.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "cost/time_limit.h"
#include "penstock/plan.h"

namespace penstock::test {

// A node with one way and one measured size (1 sample), of degree 1: seconds, live bytes and resident bytes; the backward takes twice as
// long.
PlanNode plan_node(const std::string& name, double forward, double live = 1, double resident = 0);
// Stages from lists of nodes, stage s on device s.
std::vector<PlanStage> stages_on_own_devices(const std::vector<std::vector<int>>& nodes);
// A TimeLimit that never ends, for functions that take one by reference.
TimeLimit& no_limit();
PlanProblem problem_of(PlanGraph graph, ClusterSpec cluster, int samples);
// A chain of nodes of these forward seconds and edges of `bytes`.
PlanGraph chain_graph(const std::vector<double>& forward, double bytes = 0);

struct RandomProblem {
  int nodes = 6, devices = 3;
  bool series_parallel = false;
  bool unequal = false;   // speeds, links and memories differ
  bool ways = false;      // recomputation is a second way
  bool batches = false;   // there is more than one size of micro-batches
  bool replicas = false;  // a stage may have several replicas
  bool updates = false;   // updates take up to half of a node's work
};
// A random problem: times of a few milliseconds, transfers a tenth of them, memory without limit.
PlanProblem random_problem(std::mt19937_64& random, const RandomProblem& of);

// Expects for random problems with unequal devices and memory that the planner makes a plan, or says which memory would do. With `replicas`
// half of the problems allow them; devices, order, ways and sizes are drawn, whatever `of` says.
void expect_plans_or_least_memory(const std::string& planner, RandomProblem of, std::uint64_t seeds);

// Random stages of a random problem, on random devices and with random sizes.
std::vector<PlanStage> random_stages(std::mt19937_64& random, const PlanProblem& problem);

}  // namespace penstock::test
