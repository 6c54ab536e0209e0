// SPDX-License-Identifier: Apache-2.0
// The costs of a stage: sums over its nodes, at any size of the micro-batch.
#pragma once

#include <span>

#include "penstock/network.h"
#include "penstock/plan.h"

namespace penstock {

// The cost of a set of nodes for one micro-batch, on a device of speed 1.
struct SetCost {
  double forward = 0, backward = 0;  // seconds
  double weight = 0;                 // seconds of backward that weight gradients take; half of backward where the node's costs do not say
  double live_bytes = 0;             // bytes for each micro-batch in flight
  double swap_bytes = 0;             // bytes of a micro-batch that go to the host's memory and back (NodeCost::swap_bytes)
  double resident_bytes = 0;
  double parameter_bytes = 0;
  double update = 0;  // seconds, once a step

  SetCost& operator+=(const SetCost& other);
};

// The most micro-batches whose swapped bytes are on the device at once: one is worked on, another's come or go.
inline constexpr int kSwappedThere = 2;
// The bytes on a device that has so many micro-batches in flight.
double bytes_of(const SetCost& cost, double in_flight);
// Throws Error for a graph with a way that swaps, which the planner of this name does not count.
void check_nothing_swaps(const PlanGraph& graph, const std::string& planner);

// `choice` is the index of the first of a node's costs of one (name, degree). Times between two measured sizes lie on the line between
// them; outside, on the line through the nearest two, or through zero where only one size was measured or the line would fall below half of
// that.
SetCost cost_of(const PlanNode& node, int choice, double samples);
SetCost cost_of(const PlanGraph& graph, std::span<const int> nodes, std::span<const int> choices, double samples);
// Scales the times of the stage's nodes, in every way to run them, so that the stage's are these in micro-batches of so many samples.
void scale_times(PlanGraph& graph, const PlanStage& stage, double samples, double forward, double backward);
// The index of the first of the node's costs of this name and degree; -1: it has none.
int choice_of(const PlanNode& node, int degree, std::string_view name);
// The same or, where the node has no such way, the first of this degree; -1: it has none.
int nearest_choice(const PlanNode& node, int degree, std::string_view name);
// The node's ways to run, of this degree or of all (0): for each, the index of the first of its costs. Ascending.
std::vector<int> ways_of(const PlanNode& node, int degree = 0);
// The degrees of the nodes' ways, up to the number of devices; ascending.
std::vector<int> degrees_of(const PlanGraph& graph, int devices);
// Throws Error: every way to run the node takes several devices, which the planner of this name cannot use.
[[noreturn]] void fail_one_device(const PlanNode& node, std::string_view planner);
// Throws that Error for a node whose first way to run takes several devices.
void check_one_device(const PlanGraph& graph, std::string_view planner);
// The smallest number of samples, that of costs[0], which all nodes must share; throws Error where they differ, and without any node.
int measured_samples(const PlanGraph& graph);

// For each node, its stage (-1: none) and the index of its cost.
struct NodePlaces {
  std::vector<int> stage, choice;
};
NodePlaces places_of(const PlanGraph& graph, const std::vector<PlanStage>& stages);
// The devices without a stage, ascending.
std::vector<int> idle_devices(const ClusterSpec& cluster, const std::vector<PlanStage>& stages);

// The bytes that a node's way adds to a transfer with another node (NodeCost::forward_sync, backward_sync).
double sync_bytes(const std::map<int, double>& sync, int node);

// The transfer from stage `from` to stage `to` for one sample: each output once, however many nodes read it, and the bytes that the nodes'
// degrees add.
struct StageTransfer {
  int from = 0, to = 0;
  double forward_bytes = 0, backward_bytes = 0;
  double forward_seconds = 0, backward_seconds = 0;  // from nodes whose transfers were measured as times: their bytes do not count
};
std::vector<StageTransfer> transfers_between(const PlanGraph& graph, const std::vector<PlanStage>& stages);  // sorted by (from, to)
// The bytes that one stage sends to another in the forward of a micro-batch of `samples`.
double bytes_between(const PlanGraph& graph, const PlanStage& from, const PlanStage& to, double samples);

// Tolerance for rounded sums: a plan that needs exactly the memory there is fits.
inline constexpr double kExactFit = 1 + 1e-9;
inline bool fits(double bytes, double memory) {
  return bytes <= memory * kExactFit;
}
// A device with the slowest speed, the smallest memory and the slowest link to its host of these devices, or of all; none where one has
// none.
ClusterDevice weakest(const ClusterSpec& cluster, std::span<const int> devices);
ClusterDevice weakest(const ClusterSpec& cluster);
// The link as simulations take it.
inline Link link_of(const ClusterLink& link) {
  return {.latency = link.latency, .bandwidth = link.bandwidth};
}
// A link with the longer latency and the smaller bandwidth of the two.
ClusterLink slower(const ClusterLink& a, const ClusterLink& b);
// The slowest link between a device of one and a device of the other.
ClusterLink slowest_link(const ClusterSpec& cluster, std::span<const int> from, std::span<const int> to);
// Seconds of an all-reduce as a ring among the devices: 2 (n-1)/n of the bytes over the slowest link between neighbours, and its latency 2
// (n-1) times (Patarasuk & Yuan 2009).
double all_reduce_seconds(const ClusterSpec& cluster, std::span<const int> devices, double bytes);
// The same for any number of bytes.
struct AllReduceCost {
  double per_byte = 0, latency = 0;  // seconds
  double seconds(double bytes) const { return per_byte * bytes + latency; }
};
AllReduceCost all_reduce_cost(const ClusterSpec& cluster, std::span<const int> devices);

// Which stages feed which, in the form that schedules take.
StageShape shape_of(const PlanGraph& graph, const std::vector<PlanStage>& stages);

// Sorts the stages so that each feeds only later ones. Returns false where some feed each other in a circle.
bool order_stages(const PlanGraph& graph, std::vector<PlanStage>& stages);

// Throws Error unless the stages hold each node once, feed only later ones, have devices of the cluster (whole replicas, no device in two
// stages), and sizes that divide the step.
void check_plan(const PlanProblem& problem, const Plan& plan);

}  // namespace penstock
