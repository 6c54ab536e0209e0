// Random planning problems and plans of them.
#pragma once

#include <random>
#include <string>
#include <vector>

#include "penstock/plan.h"
#include "plan/time_limit.h"

namespace penstock::test {

// Of one way and one measured size (1 sample), all of degree 1: seconds, live bytes and resident bytes of a node; the backward takes twice.
PlanNode plan_node(const std::string& name, double forward, double live = 1, double resident = 0);
// Stages from lists of nodes, stage s on device s.
std::vector<PlanStage> stages_on_own_devices(const std::vector<std::vector<int>>& nodes);
// For what takes one by reference.
TimeLimit& no_limit();
PlanProblem problem_of(PlanGraph graph, ClusterSpec cluster, int samples);
// A chain of nodes of these forward seconds and edges of `bytes`.
PlanGraph chain_graph(const std::vector<double>& forward, double bytes = 0);

struct RandomProblem {
  int nodes = 6, devices = 3;
  bool series_parallel = false;
  bool unequal = false;   // speeds, links and memories
  bool ways = false;      // recomputation as a second way
  bool batches = false;   // more than one size of micro-batches
  bool replicas = false;  // a stage may have several
  bool updates = false;   // up to half of a node's work
};
// Times of a few milliseconds, transfers a tenth of them; memory without limit.
PlanProblem random_problem(std::mt19937_64& random, const RandomProblem& of);

// Of random problems with unequal devices and memory: the planner makes a plan, or says which memory would do. With `replicas` half of them
// allow those; devices, order, ways and sizes are drawn, whatever `of` says.
void expect_plans_or_least_memory(const std::string& planner, RandomProblem of, std::uint64_t seeds);

// Stages of a random problem, on random devices, of random sizes.
std::vector<PlanStage> random_stages(std::mt19937_64& random, const PlanProblem& problem);

}  // namespace penstock::test
