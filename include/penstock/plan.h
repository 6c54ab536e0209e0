// SPDX-License-Identifier: Apache-2.0
// Planning: a model as operators with costs, a cluster, and the plan of stages that a planner makes of both.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "penstock/degrees.h"
#include "penstock/program.h"
#include "penstock/schedule.h"

namespace penstock {

// A part of what a node does of a kind (F, B, I, W, and U behind the loop), where its device is one of several over which tensors are
// split: some work, or a collective that runs while what follows does not need it. In the order in which the device does them.
struct NodeStep {
  Kind kind = Kind::F;          // the pass that it is a part of
  double seconds = 0;           // of the work, on a device of speed 1
  Opcode opcode = Opcode::run;  // or a collective, or send: each member has a message for another
  std::string axis = {};        // of a collective or messages: "tensor"
  double bytes = 0;             // of a collective: collective_seconds()'; of a message
  int after = -1;               // the last collective, by its place among the node's steps, that it waits for
};

// One way to run a node for one micro-batch.
struct NodeCost {
  std::string name = {};             // "" or "vanilla", "activation recomp", ...
  int degree = 1;                    // devices that share every micro-batch (tensor parallel)
  int samples = 1;                   // samples in the micro-batch that was measured
  double forward = 0, backward = 0;  // seconds on a device of speed 1; backward includes recomputation
  double weight = -1;                // seconds of backward that the weight gradients take; negative: not known
  double live_bytes = 0;             // kept on each device for each micro-batch between its F and its B
  double resident_bytes = 0;         // kept on each device all the time: parameters, gradients, optimiser state
  double parameter_bytes = 0;        // bytes per device that replicas of the node sum with one another
  double update = 0;                 // seconds of the optimiser's step on a device of speed 1, once a step; 0 also where no source says
  // Bytes that running the node on `degree` devices adds to the transfer from (forward_sync) and to (backward_sync) another node, by that
  // node's number.
  std::map<int, double> forward_sync = {}, backward_sync = {};
  std::vector<NodeStep> steps = {};  // of a split graph (PlanSplit), whose collectives forward and backward leave out
  bool recompute = false;            // whether a run's backward computes the node again (PlanFile::Stage::recompute)
  // Bytes that each device moves to its host's memory behind F, for each micro-batch, and back ahead of B (PlanFile::Stage::swap). They are
  // none of live_bytes: of two micro-batches at most they are on the device.
  double swap_bytes = 0;
};

// One tensor that a node sends, where its source measured that as a time: the output of one of the operators that the node was made of.
struct PlanOutput {
  double seconds = 0;     // seconds to send it once, for one micro-batch of costs[0].samples; each stage that reads it is sent it once
  bool backward = false;  // whether it is a gradient
  std::vector<int> readers = {};  // other nodes, ascending
};

// An operator, or several that are never cut apart.
struct PlanNode {
  std::string name;  // unique in the graph
  // At least one: one per (name, degree, samples), ascending in samples for each (name, degree).
  std::vector<NodeCost> costs;
  // Bytes of its output for one micro-batch of costs[0].samples; a cut after it moves them once for each stage that reads it.
  double output_bytes = 0;
  std::vector<PlanOutput> outputs = {};  // given where a source measured transfers as times; empty: bytes count
  bool equal_batches = false;            // normalises over the micro-batch: all stages with such nodes take micro-batches of one size
  std::string kind = {};                 // the operator as its source calls it ("Linear(in_features=4096, ...)"), or ""
};

// A tensor that one node reads of another.
struct PlanEdge {
  int from = 0, to = 0;  // nodes
  double bytes = 0;      // bytes for one micro-batch of costs[0].samples
  bool back = false;     // whether only a gradient goes over it, from `to`, which other nodes may read too
};

// Nodes in topological order: every edge goes to a larger number.
struct PlanGraph {
  std::string name;             // the model's, or the file's
  std::vector<PlanNode> nodes;  // edges, stages and readers count in this order
  std::vector<PlanEdge> edges;  // what nodes read of others
  int samples = 0;              // samples of a step (the mini-batch); 0: the file does not say
  // The cluster as the file describes it; 0 where it does not say.
  int devices = 0;
  double memory = 0, bandwidth = 0;  // bytes of a device; bytes per second between two
};

// Readers throw Error with file:line(:column) for anything malformed, cycles, unknown or doubled ids, numbers that are none, negative or
// not finite. Parts without an edge between them are one graph: they can run beside each other. The format follows from the text, not from
// the file's name:
//   PipeDream's profiler text, Piper's JSON, dnn-partitioning's JSON, a GraphPipe structure (JSON without times, which a roofline of the
//   published device `device` supplies), and Penstock's own (print below).
PlanGraph parse_plan_graph(std::string_view text, const std::string& file, const std::string& device = "v100");
std::string print(const PlanGraph& graph);  // Penstock's own format, JSON

// A connection between two devices, or between a device and its host.
struct ClusterLink {
  double latency = 0;                                          // seconds
  double bandwidth = std::numeric_limits<double>::infinity();  // bytes per second, in each direction
};
// A device as planners know it.
struct ClusterDevice {
  double speed = 1;                                         // a node's seconds are divided by it
  double memory = std::numeric_limits<double>::infinity();  // bytes
  std::optional<ClusterLink> host = {};  // to its host's memory, both directions in turn; none: not known, or its memory is the host's
};
// The devices that a plan is for, and how they reach each other.
struct ClusterSpec {
  std::string name;                    // the file's, or of the machine
  std::string published = {};          // the device of published figures that the first of its devices is; "": not known
  std::vector<ClusterDevice> devices;  // stages count in this order
  // One level of a hierarchy, innermost first: `size` consecutive devices that reach each other over `link`. Sizes count devices at every
  // level: a host of 8 devices has size 8. The last level holds all devices.
  struct Level {
    int size = 1;      // devices, at this level
    ClusterLink link;  // between those of different groups of the level below
  };
  std::vector<Level> levels;                           // the last has all devices; none: of one device
  std::map<std::pair<int, int>, ClusterLink> between;  // links that differ from the levels', by (smaller, larger) device

  // The link between two different devices.
  ClusterLink link(int a, int b) const;
};
// Returns a cluster of equal devices, any two over a link of this bandwidth (bytes per second) and latency (seconds), each with `memory`
// bytes.
ClusterSpec uniform_cluster(int devices, double bandwidth, double latency = 0, double memory = std::numeric_limits<double>::infinity());
// TOML (docs/planning.md). Throws Error with file:line:column.
ClusterSpec parse_cluster(std::string_view toml, const std::string& file);

// A stage of a plan: nodes, and the devices that each run all of them.
struct PlanStage {
  std::string name = {};          // made from its nodes by make_plan()
  std::vector<int> nodes = {};    // ascending
  std::vector<int> choices = {};  // for each node, the index of its (name, degree) in costs, whatever the samples; empty: 0 for each
  std::vector<int> devices = {};  // numbers in the cluster: degree * replicas of them
  int degree = 1;                 // devices that share each micro-batch (tensor parallel)
  int samples = 0;                // samples of a micro-batch, summed over all replicas; 0: as the nodes' costs
  int ahead = 0;                  // micro-batches in flight that the planner counts with; 0: the schedule chooses

  int replicas() const { return static_cast<int>(devices.size()) / degree; }  // groups of `degree` devices that share its micro-batches
};

// The problem's graph as one of the devices has it over which each replica's tensors are split: the same nodes, in local sizes.
struct PlanSplit {
  Split split;      // degrees
  PlanGraph graph;  // in which NodeCost::steps say what runs
};

// The question to a planner: a graph on a cluster, and the sizes that it may choose.
struct PlanProblem {
  PlanGraph graph = {};                // of whole tensors
  std::vector<PlanSplit> splits = {};  // planner degrees chooses among them and none
  ClusterSpec cluster = {};            // all of it may be used
  int samples = 0;                // samples of a step; 0: as the graph says, else 8 micro-batches of the costs' samples for each device
  std::vector<int> batches = {};  // sizes of micro-batches to choose from, in samples; empty: those of the costs
  bool replicas = true;           // whether a stage may run on several devices
};
// The limits of a search for a plan.
struct PlanOptions {
  double seconds = 10;     // the most seconds to search; planners that end by themselves take less
  std::uint64_t seed = 0;  // seed of the planners that draw
  // Each of these is for one planner, by the flag of its name; the others ignore it.
  bool ignore_transfers = false;  // pipedream: transfers of activations cost nothing, as in its original without a compression ratio
  bool straight = false;          // pipedream: one device per stage
  bool memory = true;             // pipedream: keep the devices' memory (the original does not by itself)
  bool exact = true;              // best: prove plans of small graphs by trying all
  DegreesOptions degrees = {};    // degrees
  // The clock that `seconds` are counted by: it gives the seconds since any moment and never runs backwards; none: a steady clock.
  std::function<double()> clock = {};
};

// A planner's answer, and its times (make_plan).
struct Plan {
  std::string planner;            // its name
  std::vector<PlanStage> stages;  // in topological order: a stage stands after those that feed it
  double bottleneck = 0;          // the planner's own objective, in seconds (docs/planning.md says which)
  bool optimal = false;           // whether the plan is proven best for the planner's own objective
  double search_seconds = 0;      // seconds that the planner took
  // The following is filled in by evaluate():
  Schedule schedule;               // an actor for each stage, or for each device where stages share one
  double predicted_time = 0;       // simulated seconds of a step
  double lower_bound = 0;          // seconds that a step takes under any plan that the search could have made
  std::vector<double> peak_bytes;  // for each device of the cluster
  // For equal groups: all that was simulated. Stages of one group share its devices, and the table is that of the best degrees.
  std::optional<DegreesPlan> degrees = {};
};

// Throws Error where there is no device, where nothing fits (with the smallest memory that would do), and for a node without the costs that
// it needs.
Plan make_plan(const std::string& planner, const PlanProblem& problem, const PlanOptions& options = {});

// A planner: one of planners(), or a user's own.
struct PlannerInfo {
  std::string name;     // as --planner takes it
  std::string summary;  // one line, with the source
  std::function<Plan(const PlanProblem&, const PlanOptions&)>
      plan;                    // fills in `stages`, `bottleneck` and `optimal`; throws Error where there is no plan
  bool smallest_size = false;  // whether it takes micro-batches of the smallest size that has costs only
  // Whether it plans groups of equal devices (degrees.h), and times them itself: for graphs of many nodes; the problem's sizes of
  // micro-batches are those of one replica.
  bool equal_groups = false;
  bool searches = false;  // whether it may search until the time is over; the others end by themselves
  // Whether it asks the others and takes the fastest plan. Where equal groups can be planned too, these are asked for beside it.
  bool races = false;
  // Whether it chooses among ways that hold less: it is given, of a model's nodes, one that computes them again (NodeCost::recompute) and
  // one that swaps (swap_bytes), which no other planner takes.
  bool lean_ways = false;
  // The planner whose stages take equal times, where its own suit 1f1b: both are asked where the table is searched behind the plan. "": its
  // own do.
  std::string even = {};
};
const std::vector<PlannerInfo>& planners();  // the first is the default
// The one of this name. Throws Error with all that there are, and with `others`, which may be asked for in the same place.
const PlannerInfo& planner_named(const std::string& name, const std::vector<std::string>& others = {});
// The same by any planner, a user's own too: its stages are checked, timed and named here. Throws Error also for stages that are no plan of
// the problem.
Plan make_plan(const PlannerInfo& planner, const PlanProblem& problem, const PlanOptions& options = {});

}  // namespace penstock
