// Finding stages: a model as operators with costs, a cluster, and the plan that a planner makes of both.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// One way to run a node for one micro-batch.
struct NodeCost {
  std::string name = {};             // "" or "vanilla", "activation recomp", ...
  int degree = 1;                    // devices that share every micro-batch (tensor parallel)
  int samples = 1;                   // in the micro-batch
  double forward = 0, backward = 0;  // seconds on a device of speed 1; backward includes what is computed again
  double weight = -1;                // of backward, its weight gradients'; negative: not known
  double live_bytes = 0;             // on each device, for each micro-batch between its F and its B
  double resident_bytes = 0;         // on each device, always: parameters, gradients, optimiser state
  double parameter_bytes = 0;        // what replicas of the node have to sum, on each device
  double update = 0;                 // seconds of the optimiser's step on a device of speed 1, once in a step; 0 also where no source says
  // Bytes that running it on `degree` devices adds to the transfer from (forward) and to (backward) another node, by its number.
  std::map<int, double> forward_sync = {}, backward_sync = {};
};

// One thing that a node sends, where a source measured that as a time: the output of one of the operators that it was made of.
struct PlanOutput {
  double seconds = 0;             // of one micro-batch of costs[0].samples, once for each stage that reads it
  bool backward = false;          // a gradient
  std::vector<int> readers = {};  // other nodes, ascending
};

struct PlanNode {
  std::string name;
  std::vector<NodeCost> costs;  // of each (name, degree) ascending in samples; none: only a host processor runs it
  double output_bytes = 0;      // of one micro-batch of costs[0].samples; what a cut after it moves, once for each stage that reads it
  std::vector<PlanOutput> outputs = {};                          // where transfers are measured as times; none: bytes count
  double cpu_seconds = std::numeric_limits<double>::infinity();  // forward and backward of one micro-batch on a host processor
  bool equal_batches = false;  // normalises over the micro-batch: all stages with such nodes take micro-batches of one size
  std::string kind = {};       // what its source calls it: "Linear(in_features=4096, ...)"; "": nothing
};

struct PlanEdge {
  int from = 0, to = 0;  // nodes
  double bytes = 0;      // of one micro-batch of costs[0].samples
};

// Nodes in topological order: every edge goes to a larger number.
struct PlanGraph {
  std::string name;
  std::vector<PlanNode> nodes;
  std::vector<PlanEdge> edges;
  int samples = 0;  // of a step, where the file says: the mini-batch; 0: it does not
  // What the file says of the cluster, where it does; 0: it does not.
  int devices = 0, cpus = 0;
  double memory = 0, bandwidth = 0;
};

// Readers: throw Error with file:line(:column) for anything malformed, cycles, unknown or doubled ids, numbers that are none, negative or
// not finite. Parts without an edge between them are one graph: they can run beside each other. The format follows from the text, not from
// the file's name:
//   PipeDream's profiler text, Piper's JSON, dnn-partitioning's JSON, a GraphPipe structure (JSON without times; `device` of the
//   published ones gives them by roofline), and Penstock's own (print below).
PlanGraph parse_plan_graph(std::string_view text, const std::string& file, const std::string& device = "v100");
std::string print(const PlanGraph& graph);

struct ClusterDevice {
  double speed = 1;                                         // times of a node are divided by it
  double memory = std::numeric_limits<double>::infinity();  // bytes
};
struct ClusterLink {
  double latency = 0;                                          // seconds
  double bandwidth = std::numeric_limits<double>::infinity();  // bytes per second, each direction
};
struct ClusterSpec {
  std::string name;
  std::vector<ClusterDevice> devices;
  // A hierarchy, innermost first: `size` consecutive devices (of the level below: a node of 8 devices has size 8) that reach each other
  // over `link`. The last level holds all devices.
  struct Level {
    int size = 1;
    ClusterLink link;
  };
  std::vector<Level> levels;
  std::map<std::pair<int, int>, ClusterLink> between;  // exceptions, by (smaller, larger) device
  int cpus = 0;                                        // host processors that may hold stages; their numbers follow the devices'

  bool is_cpu(int device) const { return device >= static_cast<int>(devices.size()); }
  // Of two different ones. Host processors pass each other what they share; devices reach them over the last level's link.
  ClusterLink link(int a, int b) const;
};
ClusterSpec uniform_cluster(int devices, double bandwidth, double latency = 0, double memory = std::numeric_limits<double>::infinity());
// TOML (docs/planning.md). Throws Error with file:line:column.
ClusterSpec parse_cluster(std::string_view toml, const std::string& file);

struct PlanStage {
  std::string name = {};
  std::vector<int> nodes = {};    // ascending
  std::vector<int> choices = {};  // of each node: the index of its (name, degree) in costs, any samples; empty: 0 of each
  std::vector<int> devices = {};  // of the cluster: degree * replicas; or one host processor
  int degree = 1;                 // tensor parallel
  int samples = 0;                // micro-batch over all replicas; 0: as the nodes' costs
  int ahead = 0;                  // micro-batches in flight that the planner counts with; 0: as the schedule chooses

  int replicas() const { return static_cast<int>(devices.size()) / degree; }
};

struct PlanProblem {
  PlanGraph graph;
  ClusterSpec cluster;
  int samples = 0;                // of a step; 0: as the graph says, else 8 micro-batches of the costs' samples for each device
  std::vector<int> batches = {};  // sizes of micro-batches to choose from, in samples; empty: those of the costs
  bool replicas = true;           // a stage may run on several devices
};
struct PlanOptions {
  double seconds = 10;     // of searching, at most; planners that end by themselves take less
  std::uint64_t seed = 0;  // of what is random
  // Of single planners, each by the flag of its name; the others leave it alone.
  bool ignore_transfers = false;  // pipedream: without activations' transfers, as its original without a compression ratio
  bool straight = false;          // pipedream: one device per stage
  bool memory = true;             // pipedream: keep the devices' memory (the original does not by itself)
  bool exact = true;              // best: prove plans of small graphs by trying all
  // The clock that `seconds` are counted by: seconds since any moment, never fewer than before; none: a steady clock.
  std::function<double()> clock = {};
};

struct Plan {
  std::string planner;
  std::vector<PlanStage> stages;  // topological: what feeds a stage stands before it
  double bottleneck = 0;          // the planner's own objective, in seconds (docs/planning.md says which)
  bool optimal = false;           // proven for the planner's own objective
  double search_seconds = 0;
  // By evaluate():
  Schedule schedule;               // an actor for each stage, or each device where stages share one
  double predicted_time = 0;       // of a step, simulated
  double lower_bound = 0;          // of a step, of any plan that the search could have made
  std::vector<double> peak_bytes;  // of each device of the cluster
};

// Throws Error: no device, nothing fits (with the smallest memory that would do), a node without the costs it needs.
Plan make_plan(const std::string& planner, const PlanProblem& problem, const PlanOptions& options = {});

struct PlannerInfo {
  std::string name;
  std::string summary;  // one line, with the source
  std::function<Plan(const PlanProblem&, const PlanOptions&)> plan;
  bool smallest_size = false;  // it takes micro-batches of the smallest size that has costs only
};
const std::vector<PlannerInfo>& planners();  // the default first

}  // namespace penstock
