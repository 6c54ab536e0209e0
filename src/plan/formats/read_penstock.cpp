// SPDX-License-Identifier: Apache-2.0
// Penstock's own form of a model's graph: everything that PlanGraph holds, as JSON. A node is referred to by its index in the list.
#include "base/text.h"
#include "formats/read.h"

namespace penstock {
namespace {

using nlohmann::ordered_json;

constexpr const char* kHeader = "graph 1";

int count(const JsonNode& root, const char* key, std::int64_t least = 0) {
  return root.has(key) ? static_cast<int>(root.at(key).whole(least, INT32_MAX)) : static_cast<int>(least);
}
double amount(const JsonNode& node, const char* key, double otherwise = 0) {
  return node.has(key) ? read_amount(node.at(key)) : otherwise;
}

std::map<int, double> read_sync(const JsonNode& node, const char* key, std::int64_t nodes) {
  std::map<int, double> out;
  if (!node.has(key)) return out;
  node.at(key).each_element([&](const JsonNode& entry) {
    entry.check_keys({"node", "bytes"});
    const auto other = static_cast<int>(entry.at("node").whole(0, nodes - 1));
    if (!out.emplace(other, read_amount(entry.at("bytes"))).second) entry.fail(concat("is a second one of the node ", other));
  });
  return out;
}

NodeCost read_cost(const JsonNode& node, std::int64_t nodes) {
  node.check_keys({"name", "degree", "samples", "forward", "backward", "weight", "live_bytes", "resident_bytes", "parameter_bytes",
                   "update", "forward_sync", "backward_sync", "recompute", "swap_bytes"});
  NodeCost cost;
  if (node.has("name")) cost.name = node.at("name").text();
  cost.degree = count(node, "degree", 1);
  cost.samples = count(node, "samples", 1);
  cost.forward = read_amount(node.at("forward"));
  cost.backward = read_amount(node.at("backward"));
  cost.weight = amount(node, "weight", -1);
  if (cost.weight > cost.backward) node.at("weight").fail(concat("is more than backward's ", number(cost.backward)));
  cost.live_bytes = amount(node, "live_bytes");
  cost.resident_bytes = amount(node, "resident_bytes");
  cost.parameter_bytes = amount(node, "parameter_bytes");
  cost.update = amount(node, "update");
  cost.forward_sync = read_sync(node, "forward_sync", nodes);
  cost.backward_sync = read_sync(node, "backward_sync", nodes);
  if (node.has("recompute")) cost.recompute = node.at("recompute").flag();
  cost.swap_bytes = amount(node, "swap_bytes");
  return cost;
}

bool same_way(const NodeCost& a, const NodeCost& b) {
  return a.name == b.name && a.degree == b.degree;
}

// Checks that costs of one name and degree stand together, ascending in samples.
void check_costs(const JsonNode& list, const std::vector<NodeCost>& costs) {
  for (std::size_t i = 1; i < costs.size(); ++i) {
    const NodeCost &before = costs[i - 1], &here = costs[i];
    if (same_way(before, here) && before.samples >= here.samples)
      list.fail(concat("[", i, "] is for ", here.samples, " samples after ", before.samples, "; samples of one way must ascend"));
    for (std::size_t j = 0; !same_way(before, here) && j < i; ++j)
      if (same_way(costs[j], here))
        list.fail(
            concat("[", i, "] belongs to [", j, "] (name ", quote(here.name), ", degree ", here.degree, "); they must stand together"));
  }
}

PlanOutput read_output(const JsonNode& node, std::int64_t nodes) {
  node.check_keys({"seconds", "backward", "readers"});
  PlanOutput out;
  out.seconds = read_amount(node.at("seconds"));
  if (node.has("backward")) out.backward = node.at("backward").flag();
  node.at("readers").each_element([&](const JsonNode& reader) {
    const auto number = static_cast<int>(reader.whole(0, nodes - 1));
    if (!out.readers.empty() && number <= out.readers.back()) reader.fail(concat("is ", number, "; readers must ascend"));
    out.readers.push_back(number);
  });
  return out;
}

// Graphs once said what a host processor takes for a node, and how many there are.
[[noreturn]] void fail_processors(const JsonNode& key) {
  key.fail("is of host processors; stages are on devices only", "leave it out, and give each node a cost on a device");
}

PlanNode read_node(const JsonNode& node, std::int64_t nodes) {
  if (node.has("cpu_seconds")) fail_processors(node.at("cpu_seconds"));
  node.check_keys({"name", "kind", "costs", "output_bytes", "outputs", "equal_batches"});
  PlanNode out;
  out.name = node.at("name").text();
  if (node.has("kind")) out.kind = node.at("kind").text();
  const JsonNode costs = node.at("costs");
  costs.each_element([&](const JsonNode& cost) { out.costs.push_back(read_cost(cost, nodes)); });
  check_costs(costs, out.costs);
  if (out.costs.empty()) costs.fail("is empty: a node needs one cost at least");
  out.output_bytes = amount(node, "output_bytes");
  if (node.has("outputs"))
    node.at("outputs").each_element([&](const JsonNode& output) { out.outputs.push_back(read_output(output, nodes)); });
  if (node.has("equal_batches")) out.equal_batches = node.at("equal_batches").flag();
  return out;
}

void set_unless(ordered_json& out, const char* key, double value, double otherwise = 0) {
  if (value != otherwise) out[key] = value;
}
void set_unless(ordered_json& out, const char* key, int value, int otherwise = 0) {
  if (value != otherwise) out[key] = value;
}

void set_sync(ordered_json& out, const char* key, const std::map<int, double>& sync) {
  for (const auto& [node, bytes] : sync) out[key].push_back({{"node", node}, {"bytes", bytes}});
}

ordered_json json_of(const NodeCost& cost) {
  ordered_json out = ordered_json::object();
  if (!cost.name.empty()) out["name"] = cost.name;
  set_unless(out, "degree", cost.degree, 1);
  set_unless(out, "samples", cost.samples, 1);
  out["forward"] = cost.forward;
  out["backward"] = cost.backward;
  set_unless(out, "weight", cost.weight, -1.0);
  set_unless(out, "live_bytes", cost.live_bytes);
  set_unless(out, "resident_bytes", cost.resident_bytes);
  set_unless(out, "parameter_bytes", cost.parameter_bytes);
  set_unless(out, "update", cost.update);
  set_sync(out, "forward_sync", cost.forward_sync);
  set_sync(out, "backward_sync", cost.backward_sync);
  if (cost.recompute) out["recompute"] = true;
  set_unless(out, "swap_bytes", cost.swap_bytes);
  return out;
}

ordered_json json_of(const PlanNode& node) {
  ordered_json out = {{"name", node.name}};
  if (!node.kind.empty()) out["kind"] = node.kind;
  out["costs"] = ordered_json::array();
  for (const NodeCost& cost : node.costs) out["costs"].push_back(json_of(cost));
  set_unless(out, "output_bytes", node.output_bytes);
  for (const PlanOutput& output : node.outputs) {
    ordered_json& entry = out["outputs"].emplace_back(ordered_json{{"seconds", output.seconds}});
    if (output.backward) entry["backward"] = true;
    entry["readers"] = output.readers;
  }
  if (node.equal_batches) out["equal_batches"] = true;
  return out;
}

}  // namespace

PlanGraph read_penstock(const JsonNode& root) {
  if (root.at("penstock").value() != kHeader)
    root.at("penstock").fail(concat("is ", shown(root.at("penstock").value()), "; this build reads ", quote(kHeader)));
  if (root.has("cpus")) fail_processors(root.at("cpus"));
  root.check_keys({"penstock", "name", "samples", "devices", "memory", "bandwidth", "nodes", "edges"});
  PlanGraph graph;
  graph.name = root.has("name") ? root.at("name").text() : "";
  graph.samples = count(root, "samples");
  graph.devices = count(root, "devices");
  graph.memory = amount(root, "memory");
  graph.bandwidth = amount(root, "bandwidth");
  const JsonNode list = root.at("nodes");
  list.check_list();
  const auto nodes = static_cast<std::int64_t>(list.value().size());
  list.each_element([&](const JsonNode& node) { graph.nodes.push_back(read_node(node, nodes)); });
  std::set<std::pair<int, int>> known;
  root.at("edges").each_element([&](const JsonNode& edge) {
    edge.check_keys({"from", "to", "bytes"});
    const PlanEdge out{static_cast<int>(edge.at("from").whole(0, nodes - 1)), static_cast<int>(edge.at("to").whole(0, nodes - 1)),
                       read_amount(edge.at("bytes"))};
    add_edge(graph, known, edge, out);
  });
  return graph;
}

std::string print(const PlanGraph& graph) {
  ordered_json out = {{"penstock", kHeader}, {"name", graph.name}};
  set_unless(out, "samples", graph.samples);
  set_unless(out, "devices", graph.devices);
  set_unless(out, "memory", graph.memory);
  set_unless(out, "bandwidth", graph.bandwidth);
  out["nodes"] = ordered_json::array();
  for (const PlanNode& node : graph.nodes) out["nodes"].push_back(json_of(node));
  out["edges"] = ordered_json::array();
  for (const PlanEdge& edge : graph.edges) out["edges"].push_back({{"from", edge.from}, {"to", edge.to}, {"bytes", edge.bytes}});
  return out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace penstock
