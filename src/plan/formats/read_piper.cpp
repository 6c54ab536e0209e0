// SPDX-License-Identifier: Apache-2.0
// Piper's JSON (Tarnawski et al., NeurIPS 2021): nodes with a list of ways to run for each tensor-parallel degree.
#include <algorithm>

#include "base/text.h"
#include "formats/read.h"

namespace penstock {
namespace {

int degree_of(const std::string& key, const JsonNode& ways) {
  const int degree = parse_number<int>(key).value_or(0);
  if (degree < 1) ways.fail(concat("has the key ", quote(key), "; it must be a number of devices"));
  return degree;
}

// The file has one time for both directions. Forward is taken as a third of the time that the node takes without recomputation.
void set_times(std::vector<NodeCost>& ways) {
  double least = ways[0].forward;
  for (const NodeCost& way : ways) least = std::min(least, way.forward);
  for (NodeCost& way : ways) {
    const double both = way.forward;
    way.forward = least / 3;
    way.backward = both - way.forward;
  }
}

std::vector<NodeCost> read_ways(const JsonNode& list, int degree) {
  std::vector<NodeCost> ways;
  list.each_element([&](const JsonNode& node) {
    NodeCost way;
    way.name = node.at("id").text();
    for (const NodeCost& other : ways)
      if (other.name == way.name) node.at("id").fail(concat("is ", quote(way.name), ", which another entry of the list is already"));
    way.degree = degree;
    way.forward = read_amount(node.at("timePerSample"));
    way.parameter_bytes = read_amount(node.at("parameterSize"));
    way.live_bytes = read_amount(node.at("memoryUsageA"));
    way.resident_bytes = read_amount(node.at("memoryUsageB"));
    ways.push_back(std::move(way));
  });
  if (!ways.empty()) set_times(ways);
  return ways;
}

// Reads the costs, by degree, then in the file's order.
void read_costs(const JsonNode& ways, PlanNode& out) {
  std::map<int, std::vector<NodeCost>> by_degree;
  ways.each_member([&](const std::string& key, const JsonNode& list) {
    const int degree = degree_of(key, ways);
    if (by_degree.contains(degree)) ways.fail(concat("has the degree ", degree, " twice"));
    by_degree[degree] = read_ways(list, degree);
  });
  for (auto& [degree, list] : by_degree) std::move(list.begin(), list.end(), std::back_inserter(out.costs));
  if (out.costs.empty()) ways.fail("has no costs: a node needs one way to run at least");
}

using Edges = std::set<std::pair<int, int>>;

class SyncReader {
 public:
  SyncReader(const std::map<std::string, int>& ids, const Edges& edges) : ids_(ids), edges_(edges) {}

  // Bytes by the other node's number; `into`: on edges into `node`, else on edges out of it.
  std::map<int, double> read(const JsonNode& sync, int node, bool into) const {
    std::map<int, double> out;
    sync.each_member([&](const std::string& key, const JsonNode& bytes) {
      const auto other = ids_.find(key);
      if (other == ids_.end()) sync.fail(concat("has the key ", quote(key), "; no node has this id"));
      if (!edges_.contains(into ? std::pair(other->second, node) : std::pair(node, other->second)))
        sync.fail(concat("has the key ", quote(key), "; there is no such edge"));
      out[other->second] = read_amount(bytes);
    });
    return out;
  }

 private:
  const std::map<std::string, int>& ids_;
  const Edges& edges_;
};

void read_sync(const JsonNode& nodes, PlanGraph& graph, const Edges& edges) {
  std::map<std::string, int> ids;
  int number = 0;
  nodes.each_element([&](const JsonNode& node) { ids[std::to_string(node.at("id").whole(0))] = number++; });
  const SyncReader reader(ids, edges);
  number = 0;
  nodes.each_element([&](const JsonNode& node) {
    node.at("TMPCs").each_member([&](const std::string& key, const JsonNode& list) {
      const int degree = degree_of(key, list);
      list.each_element([&](const JsonNode& way) {
        for (NodeCost& cost : graph.nodes[number].costs) {
          if (cost.degree != degree || cost.name != way.at("id").text()) continue;
          cost.forward_sync = reader.read(way.at("syncTimeFw"), number, true);
          cost.backward_sync = reader.read(way.at("syncTimeBw"), number, false);
        }
      });
    });
    ++number;
  });
}

}  // namespace

PlanGraph read_piper(const JsonNode& root) {
  PlanGraph graph;
  graph.memory = read_amount(root.at("maxMemoryPerDevice"));
  graph.devices = static_cast<int>(root.at("maxDevices").whole(1, INT32_MAX));
  root.at("bandwidth").positive();
  graph.bandwidth = read_amount(root.at("bandwidth"));
  graph.samples = static_cast<int>(root.at("mbsInBatch").whole(1, INT32_MAX));
  const JsonNode nodes = root.at("nodes");
  NodeIds ids;
  nodes.each_element([&](const JsonNode& node) {
    ids.add(node.at("id"), static_cast<int>(graph.nodes.size()));
    PlanNode& out = graph.nodes.emplace_back();
    out.name = node.has("name") ? node.at("name").text() : std::to_string(node.at("id").whole(0));
    read_costs(node.at("TMPCs"), out);
  });
  Edges edges;
  root.at("edges").each_element([&](const JsonNode& node) {
    const PlanEdge edge{ids.find(node.at("sourceId")), ids.find(node.at("destId")), read_amount(node.at("communicationCost"))};
    add_edge(graph, edges, node, edge);
    double& output = graph.nodes[edge.from].output_bytes;
    output = std::max(output, edge.bytes);
  });
  read_sync(nodes, graph, edges);
  return graph;
}

}  // namespace penstock
