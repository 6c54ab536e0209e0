// A problem as planners of chains see it: the nodes in one topological order, of which stages take consecutive pieces.
#pragma once

#include <functional>
#include <limits>
#include <optional>
#include <span>

#include "plan/cost_model.h"
#include "plan/time_limit.h"

namespace penstock {

// Stages begin and end at borders of blocks, each some consecutive nodes of the order. Borders are numbered from 0 to blocks().
struct ChainView {
  const PlanProblem* problem = nullptr;
  int samples = 0;           // of a micro-batch
  int microbatches = 0;      // of a step
  std::vector<int> order;    // of all nodes: topological, branch by branch
  std::vector<int> choices;  // of each node, of degree 1
  std::vector<int> places;   // in the order, of each border
  // [r - 1][border]: all nodes before it, where r replicas share the micro-batch; made when it is first asked for.
  mutable std::vector<std::vector<SetCost>> before;
  std::vector<double> bytes, seconds;  // that one sample moves over each border, each output once, forward

  int blocks() const { return static_cast<int>(places.size()) - 1; }
  int devices() const { return static_cast<int>(problem->cluster.devices.size()); }
  int most_replicas() const { return static_cast<int>(before.size()); }
};

// `choices`: of each node, by node. More nodes than `most_blocks` share blocks of even time and memory, cut where little crosses.
ChainView make_chain_view(const PlanProblem& problem, std::vector<int> choices, int samples, int most_blocks, int most_replicas);

// Of the nodes between two borders.
SetCost cost_of(const ChainView& view, int begin, int end, int replicas = 1);
// On each device, with so many micro-batches in flight.
double bytes_of(const ChainView& view, int begin, int end, int replicas, int in_flight);
// Of one micro-batch over a border, one way, without the latency.
double transfer_seconds(const ChainView& view, int border, const ClusterLink& link, int from_replicas, int to_replicas);
PlanStage stage_of(const ChainView& view, int begin, int end, std::vector<int> devices);

enum class InFlight { one, pipelined };  // one micro-batch, or one more at each stage from the last to the first
// The least memory of equal devices with which the blocks from a border on fit, at [devices][border]: of one micro-batch on at most so many
// devices, with replicas; pipelined in so many stages of one device. Infinite where there are too few blocks.
// Many devices are counted in units of so many, a power of two; few in ones.
int coarse_unit(int devices);
// `unit`: only multiples of so many devices are looked at, and those between are as the next smaller one. Looks at the time; what it has
// not come to is infinite.
std::vector<std::vector<double>> least_memory(const ChainView& view, InFlight in_flight, int unit, TimeLimit& limit);
// The stages that a chain may have: devices, blocks, and what can be simulated.
int most_stages(const ChainView& view);

struct ChainPlan {
  std::vector<PlanStage> stages;
  double bottleneck = 0;  // of the planner
  double value = 0;       // the least is chosen
};
struct ChainLimits {
  int most_blocks = 512;
  int most_replicas = 1;
  InFlight in_flight = InFlight::one;  // that the planner asks memory for
};
// Of all sizes of micro-batches, each with the fastest ways and, where that does not fit, with those that hold least, the plan of the least
// value that is found in time. `who`: the planner. Throws Error where nothing fits or was found, and where a node cannot run on one device.
Plan plan_of_chain(const std::string& who, const PlanProblem& problem, const ChainLimits& limits, TimeLimit& limit,
                   const std::function<std::optional<ChainPlan>(const ChainView&, TimeLimit&)>& plan);

}  // namespace penstock
