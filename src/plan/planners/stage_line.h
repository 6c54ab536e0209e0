// SPDX-License-Identifier: Apache-2.0
// A costed graph's nodes in a line, with the costs of a stage on any interval of it: sums are differences of prefix sums.
#pragma once

#include <utility>
#include <vector>

#include "penstock/plan.h"
#include "planners/series_parallel.h"

namespace penstock {

// One way to run a stage: micro-batches of `samples`, shared by `replicas` devices.
struct StageOption {
  int samples = 1, replicas = 1;
  int share = 0;                          // index of the share in StageCosting::shares that each device takes
  double transfer = 0;                    // seconds per byte that one sample moves over the stage's border
  double reduce = 0, reduce_latency = 0;  // for each micro-batch: seconds per byte of parameters, and seconds whatever their number
};

// The facts that all lines of a graph share: devices taken as equal, and one way to run each node.
struct StageCosting {
  std::vector<int> devices = {};  // numbers in the cluster
  double speed = 1, memory = 0;   // the slowest device's speed, the smallest one's memory
  ClusterLink link = {};
  int samples = 0;                // samples of a step
  std::vector<int> choices = {};  // the way of each node
  std::vector<double> shares = {};
  std::vector<StageOption> options = {};
  int equal_size = 0;  // the micro-batch of stages with equal_batches nodes; 0: there are no such nodes
};

// A stage's border is what it sends and is sent: bytes of a sample, each output once; latency in seconds for each micro-batch.
struct StageBorder {
  float bytes = 0, latency = 0;
};

// An interval of the line whose branches do not depend on each other: branch i is [bounds[i], bounds[i + 1]).
struct Fork {
  std::vector<int> bounds;

  int begin() const { return bounds.front(); }
  int end() const { return bounds.back(); }
};

struct StageLine {
  const PlanGraph* graph = nullptr;
  const StageCosting* costing = nullptr;
  std::vector<int> order;   // the nodes in topological order
  std::vector<Fork> forks;  // a fork stands before those inside of it
  // At each position: the forks, and how many of their branches end there. In a fork with few branches any neighbouring ones form a fork
  // too.
  std::vector<std::vector<std::pair<int, int>>> forks_ending;
  // At i: sums over order[0, i). seconds and live bytes: for one micro-batch of shares[s]. work: device seconds for a sample, at least.
  std::vector<std::vector<double>> seconds, live;
  std::vector<double> resident, parameters, work;
  std::vector<int> equal;            // number of nodes with equal_batches
  std::vector<StageBorder> borders;  // of [begin, end), at index end * (end - 1) / 2 + begin

  int size() const { return static_cast<int>(order.size()); }
  const StageBorder& border(int begin, int end) const {
    return borders[static_cast<std::size_t>(end) * static_cast<std::size_t>(end - 1) / 2 + static_cast<std::size_t>(begin)];
  }
};

// Bytes of each node's output for one sample.
std::vector<double> output_bytes(const PlanGraph& graph);

// `order` holds all nodes, topologically; forks may be empty. The line refers to graph and costing. Quadratic in nodes.
StageLine make_line(const PlanGraph& graph, const StageCosting& costing, std::vector<int> order, std::vector<Fork> forks);
// The line in the order of the tree, with its parallels as forks.
StageLine make_line(const PlanGraph& graph, const StageCosting& costing, const SeriesParallel& tree);

// Seconds of a stage for one sample, with transfers and the sum of gradients; `seconds`: of a micro-batch on each device, `parameters`:
// bytes. A transfer takes time at both its ends, half of its forward and backward time at each: a stage one micro-batch ahead of the next
// loses that much to waiting.
inline double seconds_per_sample(double seconds, const StageBorder& border, double parameters, const StageOption& option) {
  const double batch = seconds + border.latency + option.reduce_latency + parameters * option.reduce;
  return batch / option.samples + border.bytes * option.transfer;
}
// The same of an interval as a stage.
inline double seconds_per_sample(const StageLine& line, int begin, int end, const StageOption& option) {
  const std::vector<double>& seconds = line.seconds[option.share];
  const std::size_t a = static_cast<std::size_t>(begin), b = static_cast<std::size_t>(end);
  return seconds_per_sample(seconds[b] - seconds[a], line.border(begin, end), line.parameters[b] - line.parameters[a], option);
}

// Bytes on each device of such a stage with `in_flight` samples under way, which are whole micro-batches.
inline double bytes_needed(const StageLine& line, int begin, int end, const StageOption& option, int in_flight) {
  const std::vector<double>& live = line.live[option.share];
  const std::size_t a = static_cast<std::size_t>(begin), b = static_cast<std::size_t>(end);
  return line.resident[b] - line.resident[a] + in_flight / option.samples * (live[b] - live[a]);
}

// Whether stages of [begin, end) may take the option's micro-batch.
inline bool size_allowed(const StageLine& line, int begin, int end, const StageOption& option) {
  return line.costing->equal_size == 0 || option.samples == line.costing->equal_size || line.equal[end] == line.equal[begin];
}

}  // namespace penstock
