// SPDX-License-Identifier: Apache-2.0
// A planning problem as planners of chains see it: the nodes in one topological order, of which stages take consecutive pieces.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>

#include "cost/cost_model.h"
#include "cost/time_limit.h"

namespace penstock {

// Atoms are consecutive nodes of the order; stages begin and end at borders of atoms. Borders are numbered from 0 to atoms().
struct ChainView {
  const PlanProblem* problem = nullptr;
  int samples = 0;           // in a micro-batch
  int microbatches = 0;      // in a step
  std::vector<int> order;    // all nodes, topological, branch by branch
  std::vector<int> choices;  // of each node: its way to run, of degree 1
  std::vector<int> places;   // of each border: its position in the order
  // [r - 1][border]: cost of all nodes before the border, where r replicas share the micro-batch; computed when it is first asked for.
  mutable std::vector<std::vector<SetCost>> before;
  std::vector<double> bytes, seconds;  // for each border, what one sample moves over it forward, each output once

  int atoms() const { return static_cast<int>(places.size()) - 1; }
  int devices() const { return static_cast<int>(problem->cluster.devices.size()); }
  int most_replicas() const { return static_cast<int>(before.size()); }
};

// `choices`: the way of each node, indexed by node. Where there are more nodes than `most_atoms`, several share an atom; atoms have even
// time and memory and are cut where little crosses.
ChainView make_chain_view(const PlanProblem& problem, std::vector<int> choices, int samples, int most_atoms, int most_replicas);

// The cost of the nodes between two borders.
SetCost cost_of(const ChainView& view, int begin, int end, int replicas = 1);
// Bytes on each device with so many micro-batches in flight.
double bytes_of(const ChainView& view, int begin, int end, int replicas, int in_flight);
// Seconds for one micro-batch to cross a border, one way, without the latency.
double transfer_seconds(const ChainView& view, int border, const ClusterLink& link, int from_replicas, int to_replicas);
PlanStage stage_of(const ChainView& view, int begin, int end, std::vector<int> devices);

// The micro-batches that memory is counted with: one micro-batch, or one more at each stage from the last to the first.
enum class InFlight { one, pipelined };
// Many devices are counted in units of a power of two of devices, few one by one.
int coarse_unit(int devices);
// The least memory of equal devices with which the atoms from a border on fit, at [devices][border]. InFlight::one: one micro-batch on at
// most so many devices, with replicas. InFlight::pipelined: in so many stages of one device each. Infinite where there are too few atoms.
// Only multiples of `unit` devices are computed; a number between them has the value of the next smaller one. Where the time is over the
// rest is infinite.
std::vector<std::vector<double>> least_memory(const ChainView& view, InFlight in_flight, int unit, TimeLimit& limit);
// The most stages that a chain may have, by its devices, its atoms, and what can be simulated.
int most_stages(const ChainView& view);

struct ChainPlan {
  std::vector<PlanStage> stages;
  double bottleneck = 0;  // the planner's own objective
  double value = 0;       // the plan with the least value is chosen
};

// A plan that is chosen by its simulated step, which `limit` counts.
ChainPlan timed_chain(const ChainView& view, std::vector<PlanStage> stages, double bottleneck, TimeLimit& limit);

struct ChainLimits {
  int most_atoms = 512;
  bool replicas = false;               // whether stages have any, where the problem allows them
  InFlight in_flight = InFlight::one;  // what the planner needs memory for,
  bool by_trial = false;               // unless only planning with more of it tells what would do
};
// Finds the plan of one size of micro-batches and one way of each node; none where nothing fits.
using ChainPlanner = std::function<std::optional<ChainPlan>(const ChainView&, TimeLimit&)>;
// Calls `plan` for all sizes of micro-batches, each with the nodes' fastest ways and, where these do not fit, with those that hold least;
// returns the plan of least value that is found in options.seconds. `who`: the planner's name. Throws Error where nothing fits or was
// found, and where a node cannot run on one device.
Plan plan_of_chain(const std::string& who, const PlanProblem& problem, const ChainLimits& limits, const PlanOptions& options,
                   const ChainPlanner& plan);

}  // namespace penstock
