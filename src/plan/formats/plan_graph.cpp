// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <queue>

#include "base/cursor.h"
#include "base/text.h"
#include "formats/read.h"
#include "penstock/error.h"

namespace penstock {
namespace {

constexpr double kMost = 1e30;

// A cycle among the nodes that still wait for others: it follows waiting predecessors until one comes back.
std::vector<int> cycle_of(const PlanGraph& graph, const std::vector<int>& waiting) {
  std::vector<int> before(graph.nodes.size(), -1);
  for (const PlanEdge& edge : graph.edges)
    if (waiting[edge.from] > 0 && waiting[edge.to] > 0) before[edge.to] = edge.from;
  int at = static_cast<int>(std::find_if(waiting.begin(), waiting.end(), [](int count) { return count > 0; }) - waiting.begin());
  std::vector<int> path, place(graph.nodes.size(), -1);
  while (place[at] < 0) {
    place[at] = static_cast<int>(path.size());
    path.push_back(at);
    at = before[at];
  }
  path.erase(path.begin(), path.begin() + place[at]);
  std::reverse(path.begin(), path.end());
  return path;
}

[[noreturn]] void fail_cycle(const PlanGraph& graph, const std::vector<int>& waiting, const std::string& file) {
  constexpr std::size_t kShown = 12;  // how many names of a long cycle are shown
  std::vector<int> cycle = cycle_of(graph, waiting);
  const std::size_t length = cycle.size();
  cycle.resize(std::min(length, kShown));
  const std::string first = graph.nodes[cycle[0]].name;
  const std::string names = join(cycle, " -> ", [&](int node) { return graph.nodes[node].name; });
  throw Error(concat(file, ": the graph has a cycle of ", length, length == 1 ? " node" : " nodes"),
              {concat(names, length > kShown ? " -> ..." : "", " -> ", first)}, "a model's graph for planning has no cycles");
}

// The new number of each node, in topological order.
std::vector<int> topological_numbers(const PlanGraph& graph, const std::string& file) {
  std::vector<int> waiting(graph.nodes.size(), 0);  // by node: how many predecessors it still waits for
  std::vector<std::vector<int>> after(graph.nodes.size());
  for (const PlanEdge& edge : graph.edges) {
    ++waiting[edge.to];
    after[edge.from].push_back(edge.to);
  }
  std::priority_queue<int, std::vector<int>, std::greater<>> ready;
  for (std::size_t i = 0; i < waiting.size(); ++i)
    if (waiting[i] == 0) ready.push(static_cast<int>(i));
  std::vector<int> number(graph.nodes.size(), -1);
  int next = 0;
  while (!ready.empty()) {
    const std::size_t node = ready.top();
    ready.pop();
    number[node] = next++;
    for (const int reader : after[node])
      if (--waiting[reader] == 0) ready.push(reader);
  }
  if (next < std::ssize(graph.nodes)) fail_cycle(graph, waiting, file);
  return number;
}

std::map<int, double> renumbered(const std::map<int, double>& values, const std::vector<int>& number) {
  std::map<int, double> out;
  for (const auto& [node, value] : values) out[number[node]] = value;
  return out;
}

PlanGraph read_json(std::string_view text, const std::string& file, const std::string& device) {
  const JsonFile source{file, ""};
  const nlohmann::json document = parse_json(text, source);
  const JsonNode root(document, source);
  root.check_object();
  if (root.has("penstock")) return read_penstock(root);
  if (root.has("mbsInBatch") || root.has("maxMemoryPerDevice")) return read_piper(root);
  if (root.has("maxSizePerFPGA") || root.has("maxFPGAs")) return read_dnn_partitioning(root, file);
  const JsonNode nodes = root.at("nodes");
  nodes.check_list();
  if (!nodes.value().empty() && nodes.value()[0].contains("forward_flops")) return read_graphpipe(root, device);
  throw Error(concat(file, ": this JSON is no graph of a model"), {"Piper's has a key mbsInBatch, dnn-partitioning's maxFPGAs, a GraphPipe "
                                                                   "structure nodes with forward_flops, Penstock's own penstock"});
}

// Checks that what a reader derived from the file's numbers (bytes of several samples, sums) keeps the limit of those numbers.
void check_amounts(const PlanGraph& graph, const std::string& file) {
  for (const PlanNode& node : graph.nodes) {
    const auto check = [&](double value, const char* what) {
      if (value > kMost) throw Error(concat(file, ": node ", quote(node.name), " has ", value, " ", what, "; it must be at most 1e30"));
    };
    check(node.output_bytes, "bytes of output");
    for (const PlanOutput& output : node.outputs) check(output.seconds, "seconds of transfer");
    for (const NodeCost& cost : node.costs) {
      check(cost.forward, "seconds of forward");
      check(cost.backward, "seconds of backward");
      check(cost.live_bytes, "bytes per micro-batch");
      check(cost.swap_bytes, "bytes that are swapped");
      check(cost.resident_bytes, "resident bytes");
      check(cost.parameter_bytes, "bytes of parameters");
      check(cost.update, "seconds of update");
    }
  }
}

}  // namespace

double read_amount(const JsonNode& node) {
  const double value = node.number();
  if (value > kMost) node.fail(concat("is ", shown(node.value()), "; it must be at most 1e30"));
  return value;
}

void NodeIds::add(const JsonNode& id, int node) {
  if (!nodes_.emplace(id.whole(0), node).second) id.fail(concat("is ", shown(id.value()), ", which another node has already"));
}

int NodeIds::find(const JsonNode& id) const {
  const auto found = nodes_.find(id.whole(0));
  if (found == nodes_.end()) id.fail(concat("is ", shown(id.value()), "; no node has this id"));
  return found->second;
}

void add_edge(PlanGraph& graph, std::set<std::pair<int, int>>& known, const JsonNode& place, PlanEdge edge) {
  if (!known.emplace(edge.from, edge.to).second)
    place.fail(concat("is there twice: an edge from ", quote(graph.nodes[edge.from].name), " to ", quote(graph.nodes[edge.to].name)));
  graph.edges.push_back(edge);
}

PlanGraph in_topological_order(PlanGraph graph, const std::string& file) {
  if (graph.nodes.empty()) throw Error(concat(file, ": the graph has no nodes"));
  const std::vector<int> number = topological_numbers(graph, file);
  std::vector<PlanNode> nodes(graph.nodes.size());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (NodeCost& cost : graph.nodes[i].costs) {
      cost.forward_sync = renumbered(cost.forward_sync, number);
      cost.backward_sync = renumbered(cost.backward_sync, number);
    }
    for (PlanOutput& output : graph.nodes[i].outputs) {
      for (int& reader : output.readers) reader = number[reader];
      std::sort(output.readers.begin(), output.readers.end());
    }
    nodes[number[i]] = std::move(graph.nodes[i]);
  }
  graph.nodes = std::move(nodes);
  for (PlanEdge& edge : graph.edges) edge = {number[edge.from], number[edge.to], edge.bytes};
  std::stable_sort(graph.edges.begin(), graph.edges.end(),
                   [](const PlanEdge& a, const PlanEdge& b) { return std::pair(a.to, a.from) < std::pair(b.to, b.from); });
  return graph;
}

PlanGraph parse_plan_graph(std::string_view text, const std::string& file, const std::string& device) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) throw Error(concat(file, ": the file is empty"), {}, "give a graph with one node at least");
  PlanGraph graph =
      in_topological_order(text[first] == '{' || text[first] == '[' ? read_json(text, file, device) : read_pipedream(text, file), file);
  check_amounts(graph, file);
  if (graph.name.empty()) graph.name = file;
  return graph;
}

}  // namespace penstock
