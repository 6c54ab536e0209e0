// SPDX-License-Identifier: Apache-2.0
// Helpers that the readers of model graphs share.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "base/json.h"
#include "penstock/plan.h"

namespace penstock {

// A number from 0 to 1e30, so that sums stay finite; throws Error.
double read_amount(const JsonNode& node);

// Nodes by the identifiers that a file gives them.
class NodeIds {
 public:
  // Throws Error where the identifier is there already.
  void add(const JsonNode& id, int node);
  int find(const JsonNode& id) const;  // throws Error where there is none

 private:
  std::map<std::int64_t, int> nodes_;
};

// Adds an edge to the graph and to `known`; throws Error where the edge exists already.
void add_edge(PlanGraph& graph, std::set<std::pair<int, int>>& known, const JsonNode& place, PlanEdge edge);

// The graph with its nodes in topological order: the order they have where that is one, else always the first node that is ready. Edges are
// sorted by reader. Throws Error: no node, a cycle (it names the nodes).
PlanGraph in_topological_order(PlanGraph graph, const std::string& file);

PlanGraph read_pipedream(std::string_view text, const std::string& file);
PlanGraph read_piper(const JsonNode& root);
PlanGraph read_dnn_partitioning(const JsonNode& root, const std::string& file);
// It gets times from the roofline of the device (published_devices()), for micro-batches of 1, 2, 4, ... 1024 samples.
PlanGraph read_graphpipe(const JsonNode& root, const std::string& device);
PlanGraph read_penstock(const JsonNode& root);

}  // namespace penstock
