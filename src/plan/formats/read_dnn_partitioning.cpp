// SPDX-License-Identifier: Apache-2.0
// dnn-partitioning's JSON (Tarnawski et al., NeurIPS 2020). There an operator is several nodes, forward and backward. Nodes of one colour
// share a device: they become one node of the graph, which has the order of the forward ones. What each of them sends stays an output of
// its own. Times on host processors are passed over: stages are on devices.
#include <algorithm>

#include "base/numbers.h"
#include "base/text.h"
#include "formats/read.h"

namespace penstock {
namespace {

// A node of the file.
struct Part {
  std::string name;
  int colour = 0;
  bool backward = false;
  double seconds = 0, bytes = 0;
  double transfer = 0, output_bytes = 0;  // seconds and bytes of its output
};
struct PartEdge {
  int from = 0, to = 0;
};

class Parts {
 public:
  explicit Parts(const JsonNode& root) {
    root.at("nodes").each_element([&](const JsonNode& node) { add(node); });
    root.at("edges").each_element([&](const JsonNode& edge) {
      edges.push_back({ids_.find(edge.at("sourceId")), ids_.find(edge.at("destId"))});
      Part& from = all[edges.back().from];
      // The edges out of a node share one transfer, that of its output; its cost stands on each of them.
      from.transfer = std::max(from.transfer, read_amount(edge.at("cost")) * kMillisecond);
      if (edge.has("size")) from.output_bytes = std::max(from.output_bytes, read_amount(edge.at("size")));
    });
  }

  std::vector<Part> all;
  std::vector<PartEdge> edges;
  int colours = 0;

 private:
  // Some files write 0 and 1, others false and true.
  static bool is_set(const JsonNode& node) { return node.value().is_boolean() ? node.flag() : node.whole(0, 1) == 1; }

  void add(const JsonNode& node) {
    ids_.add(node.at("id"), static_cast<int>(all.size()));
    Part& part = all.emplace_back();
    part.name = node.has("name") ? node.at("name").text() : std::to_string(node.at("id").whole(0));
    part.colour = colours;
    if (node.has("colorClass")) part.colour = by_colour_.emplace(node.at("colorClass").whole(0), colours).first->second;
    colours += part.colour == colours;
    part.backward = node.has("isBackwardNode") && is_set(node.at("isBackwardNode"));
    if (!is_set(node.at("supportedOnFpga")))
      node.at("supportedOnFpga")
          .fail("is false; stages are on devices, and no longer on host processors", "give the node a time on a device");
    part.seconds = read_amount(node.at("fpgaLatency")) * kMillisecond;
    if (node.has("size")) part.bytes = read_amount(node.at("size"));
  }

  std::map<std::int64_t, int> by_colour_;
  NodeIds ids_;
};

void check_no_cycle(const Parts& parts, const std::string& file) {
  PlanGraph graph;
  for (const Part& part : parts.all) graph.nodes.emplace_back().name = part.name;
  for (const PartEdge& edge : parts.edges) graph.edges.push_back({edge.from, edge.to});
  in_topological_order(std::move(graph), file);
}

using Lists = std::vector<std::vector<int>>;

// Marks and appends the nodes that `from` reaches. A node is appended when all that it reaches is marked.
void append_reached(const Lists& next, int from, std::vector<bool>& marked, std::vector<int>& out) {
  if (marked[from]) return;
  marked[from] = true;
  std::vector<std::pair<int, std::size_t>> path = {{from, 0}};  // a node, and its next edge to follow
  while (!path.empty()) {
    auto& [node, edge] = path.back();
    if (edge == next[node].size()) {
      out.push_back(node);
      path.pop_back();
    } else if (const int reader = next[node][edge++]; !marked[reader]) {
      marked[reader] = true;
      path.emplace_back(reader, 0);
    }
  }
}

// For each node the smallest node of its circle: of those that it reaches and that reach it (Kosaraju and Sharir).
std::vector<int> circles(const Lists& next) {
  Lists before(next.size());
  for (std::size_t node = 0; node < next.size(); ++node)
    for (const int reader : next[node]) before[reader].push_back(static_cast<int>(node));
  std::vector<bool> marked(next.size(), false);
  std::vector<int> order, circle(next.size());
  for (std::size_t node = 0; node < next.size(); ++node) append_reached(next, static_cast<int>(node), marked, order);
  marked.assign(next.size(), false);
  for (auto node = order.rbegin(); node != order.rend(); ++node) {
    std::vector<int> together;
    append_reached(before, *node, marked, together);
    if (together.empty()) continue;
    const int first = *std::min_element(together.begin(), together.end());
    for (const int other : together) circle[other] = first;
  }
  return circle;
}

// The graph's node for each part of the file, and edges that order nodes but move nothing.
struct Merged {
  std::vector<int> node;
  int nodes = 0;
  std::set<std::pair<int, int>> order;
};

// Where a colour has backward parts only, a forward part that takes no time stands for them: before the nodes that send them gradients and
// after those that take theirs. Colours whose forward parts feed each other in a circle become one node.
Merged merge(const Parts& parts) {
  std::vector<bool> forward(at(parts.colours), false);
  for (const Part& part : parts.all)
    if (!part.backward) forward[part.colour] = true;
  Lists next(at(parts.colours));
  std::set<std::pair<int, int>> mirrored;
  for (const PartEdge& edge : parts.edges) {
    const Part &from = parts.all[edge.from], &to = parts.all[edge.to];
    if (from.colour == to.colour || from.backward != to.backward) continue;
    if (!from.backward) next[from.colour].push_back(to.colour);
    if (!from.backward || (forward[from.colour] && forward[to.colour])) continue;
    next[to.colour].push_back(from.colour);
    mirrored.emplace(to.colour, from.colour);
  }
  const std::vector<int> circle = circles(next);
  Merged merged;
  merged.node.assign(parts.all.size(), -1);
  std::map<int, int> numbers;  // by the first colour of a circle, numbered in the order of first forward parts
  for (const bool backward : {false, true})
    for (std::size_t i = 0; i < parts.all.size(); ++i)
      if (parts.all[i].backward == backward)
        merged.node[i] = numbers.emplace(circle[parts.all[i].colour], static_cast<int>(numbers.size())).first->second;
  merged.nodes = static_cast<int>(numbers.size());
  for (const auto& [from, to] : mirrored)
    if (circle[from] != circle[to]) merged.order.emplace(numbers.at(circle[from]), numbers.at(circle[to]));
  return merged;
}

void add_part(const Part& part, PlanNode& node) {
  if (node.name.empty()) node.name = part.name;
  NodeCost& cost = node.costs[0];
  (part.backward ? cost.backward : cost.forward) += part.seconds;
  cost.resident_bytes += part.bytes;
  // The file's `size` is everything that a part keeps; how much of it is parameters the file does not say, so all counts.
  if (!part.backward) cost.parameter_bytes += part.bytes;
}

void add_outputs(const Parts& parts, const Merged& merged, PlanGraph& graph) {
  std::vector<std::set<int>> readers(parts.all.size()), forward_readers(parts.all.size());
  for (const PartEdge& edge : parts.edges) {
    const int to = merged.node[edge.to];
    if (merged.node[edge.from] == to) continue;
    readers[edge.from].insert(to);
    if (!parts.all[edge.from].backward && !parts.all[edge.to].backward) forward_readers[edge.from].insert(to);
  }
  std::map<std::pair<int, int>, double> bytes;
  for (const auto& pair : merged.order) bytes[pair] = 0;
  for (std::size_t i = 0; i < parts.all.size(); ++i) {
    if (readers[i].empty()) continue;
    const Part& part = parts.all[i];
    PlanNode& node = graph.nodes[merged.node[i]];
    node.outputs.push_back({part.transfer, part.backward, {readers[i].begin(), readers[i].end()}});
    if (!forward_readers[i].empty()) node.output_bytes += part.output_bytes;
    for (const int reader : forward_readers[i]) bytes[{merged.node[i], reader}] += part.output_bytes;
  }
  for (const auto& [pair, size] : bytes) graph.edges.push_back({pair.first, pair.second, size});
}

}  // namespace

PlanGraph read_dnn_partitioning(const JsonNode& root, const std::string& file) {
  PlanGraph graph;
  graph.memory = read_amount(root.at("maxSizePerFPGA"));
  graph.devices = static_cast<int>(root.at("maxFPGAs").whole(0, INT32_MAX));
  const Parts parts(root);
  if (parts.all.empty()) return graph;
  check_no_cycle(parts, file);
  const Merged merged = merge(parts);
  graph.nodes.resize(at(merged.nodes));
  for (PlanNode& node : graph.nodes) node.costs.resize(1);
  for (const bool backward : {false, true})
    for (std::size_t i = 0; i < parts.all.size(); ++i)
      if (parts.all[i].backward == backward) add_part(parts.all[i], graph.nodes[merged.node[i]]);
  add_outputs(parts, merged, graph);
  return graph;
}

}  // namespace penstock
