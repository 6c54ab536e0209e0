// SPDX-License-Identifier: Apache-2.0
// A traced step as a graph for planning, and planned stages as marks in the step.
//
// A node is a longest run of forward ops of the loop that one module made (Op::origin) and that adds no order: an op that reads something
// the run does not already wait for begins another.
//
// Runs follow each other in the order of tracing, and what one needs of another is always an earlier one's, so any stages that a planner
// makes of them without a circle are stages of the step.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/plan.h"
#include "stage/stages.h"

namespace penstock {

// The node of each op of the loop's body; "" for backward ops, constants and boundaries. A node is named by its origin, "h.0.attn"; the
// second run of one origin is "h.0.attn#2"; ops without an origin are of "model". An op that reads no data (a view of a parameter) is in
// the earliest node that needs it.
std::vector<std::string> node_names(const Graph& step);
// The nodes' names, each once, in the order of tracing.
std::vector<std::string> nodes_of(const Graph& step);

// The step with stages for its nodes, given by the nodes' names. Other marks and boundaries are removed; ops of nodes that are not named
// have no mark, and assign_stages infers their stage. The backward computes the nodes of `again` again (kRecompute). What forwards make
// and the backwards of nodes of `swapped` are the first to read may wait in the host's memory (kOffload).
Graph mark_stages(const Graph& step, const std::map<std::string, std::string>& stage_of, const std::set<std::string>& again = {},
                  const std::set<std::string>& swapped = {});

// Gives the seconds of a task on a device of speed 1: F and B; also W of a split backward, or 0 where that is not known.
using TaskSeconds = std::function<double(const StageTask&)>;
// A node for each stage of `step` (as prepare_stages or first_member returns it), with the costs of its micro-batch's size; `steps` of
// nodes that collectives part. Live bytes are those that backwards read, counted at the first stage whose backward does; resident are
// parameters, their moments, the sums of gradients and what is computed of parameters before the loop. (A program's memory plan is exact;
// these are for choosing.)
PlanGraph plan_graph_of(const StagedStep& step, const TaskSeconds& seconds);
// For each stage of such a step: the part of its live bytes that forwards make, which may wait in the host's memory.
std::vector<double> swappable_bytes(const StagedStep& step);
// Throws Error where a graph of the same step has other nodes.
void check_same_nodes(const PlanGraph& graph, const PlanGraph& other);
// Adds the costs of another size of the same nodes, larger than those so far. Throws Error where the nodes differ.
void add_size(PlanGraph& graph, const PlanGraph& larger);

// Adds an edge of no bytes for all that a node of the step's loop reads of another: also of what is the same for every micro-batch, which
// need not leave the loop.
void add_order(PlanGraph& graph, const Graph& step);
// Merges the nodes of a graph into at most so many, where that adds no order, the cheapest neighbours first. Returns the merged name of
// each node; a merged one is called "first..last".
std::map<std::string, std::string> merged_nodes(const PlanGraph& graph, int most);

}  // namespace penstock
