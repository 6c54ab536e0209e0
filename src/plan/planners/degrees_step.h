// SPDX-License-Identifier: Apache-2.0
// Simulates a step under one choice of degrees: its table with collectives, what its actions cost, and what its devices hold.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "cost/time_limit.h"
#include "penstock/degrees.h"
#include "penstock/table.h"
#include "planners/degrees_atoms.h"
#include "planners/degrees_groups.h"

namespace penstock {

// Whether the limits allow the split, whatever else is chosen.
bool allows(const DegreesLimits& only, const Split& split);

// Caches what choices have in common. It refers to the problem, which must outlive it.
class DegreesSteps {
 public:
  DegreesSteps(const PlanProblem& problem, const DegreesOptions& options) : problem_(problem), options_(options) {}

  const std::vector<Atom>& atoms(const Degrees& degrees);

  // A lower bound that is known without a table: no step of these degrees is shorter, and no device of a plan that fits holds less.
  struct Bound {
    double seconds = 0;
    double memory = 0;  // on the fullest device
  };
  Bound bound(const Degrees& degrees);
  // A higher bound of the memory: what each actor holds when its first backward begins, as its table has it.
  double least_memory(const Degrees& degrees);
  std::int64_t work(const Degrees& degrees);  // elementary steps that bound() takes
  DegreesResult run(const Degrees& degrees);

 private:
  // The forwards ahead of the first backward of an actor's row, by chunk, and the chunk of that backward.
  struct FirstBackward {
    std::vector<int> forwards;
    int chunk = 0;
  };
  const std::vector<FirstBackward>& first_backwards(const Degrees& degrees);

  // Samples, the split, and how far apart the members of tensor and context stand.
  using SplitKey = std::tuple<int, Split, int, int>;
  static SplitKey key(const Degrees& degrees);
  const std::vector<int>& cuts(const Degrees& degrees);
  const DegreesGroups& groups(const Degrees& degrees);

  const PlanProblem& problem_;
  DegreesOptions options_;
  std::map<SplitKey, std::vector<Atom>> atoms_;
  std::map<std::tuple<SplitKey, int, int>, std::vector<int>> cuts_;  // by actors and chunks
  std::map<std::tuple<int, int, Split, AxisOrder, int>, DegreesGroups> groups_;
  std::map<std::tuple<std::string, int, int, int, int>, std::vector<FirstBackward>> first_backwards_;  // schedule, pipe, chunks, ...
};

// The costs of a device of the split; the problem's own where there is none. The split is one of the problem's.
const PlanGraph& graph_of(const PlanProblem& problem, const Split& split);

// Simulates one candidate. Throws Error as make_schedule does.
DegreesResult simulate_degrees(const PlanProblem& problem, const DegreesOptions& options, const Degrees& degrees);

// The table of computations that the actors follow: the schedule's without collectives, with R before each backward where they recompute.
// table_of() adds the rest to it.
Schedule computing_table(const Degrees& degrees);

// The whole table of the degrees' schedule: with R before each backward where they recompute; with gradients reduced and parameters
// gathered as the ZeRO level says; with the update of each stage behind all else of its actor.
Schedule table_of(const Degrees& degrees);

// Bytes that a device of an actor always holds for its `parameters` elements, whose states its replicas keep at the degrees' ZeRO level
// (Rajbhandari et al., 1910.02054, figure 1).
double resident_bytes(const StateBytes& states, double parameters, const Degrees& degrees);

// Plans the problem's graph as a row: stages are cut where one output crosses. Each node has one way to run, on one device; sizes of
// micro-batches (PlanProblem::batches, else those of the costs) are those of one replica. Where a node does not say the time of its weight
// gradients (NodeCost::weight) it is half of its backward. Throws Error: no degrees fit the batch or the limits; none fits the memory, with
// the smallest that would do; no plan was found in time; a node that runs on no single device.
DegreesPlan plan_degrees(const PlanProblem& problem, const DegreesOptions& options, TimeLimit limit = {});

}  // namespace penstock
