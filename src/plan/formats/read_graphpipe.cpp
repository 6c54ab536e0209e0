// SPDX-License-Identifier: Apache-2.0
// Structures of GraphPipe's models (Jeon et al., ASPLOS 2025): operators with shapes and floating-point operations, but no times.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "formats/read.h"
#include "simulate/roofline.h"

namespace penstock {
namespace {

constexpr double kElement = 4;              // bytes of an f32
constexpr double kResident = 4 * kElement;  // bytes per parameter: itself, its gradient and the optimiser's two moments
constexpr int kLargest = 1024;              // the most samples of a micro-batch that gets a time of its own

// The figures of an operator per sample.
struct Operator {
  std::string op;
  double flops = 0, input_bytes = 0, output_bytes = 0, parameters = 0;
};

Operator read_operator(const JsonNode& node) {
  Operator out;
  out.op = node.at("op").text();
  out.flops = read_amount(node.at("forward_flops"));
  out.parameters = read_amount(node.at("parameters"));
  double elements = 1;
  node.at("output_shape").each_element([&](const JsonNode& size) { elements *= static_cast<double>(size.whole(0, INT32_MAX)); });
  if (elements > 1e18) node.at("output_shape").fail("has more than 1e18 elements");
  const bool wide = node.has("dtype") && (node.at("dtype").text() == "i64" || node.at("dtype").text() == "f64");
  out.output_bytes = elements * (wide ? 2 * kElement : kElement);
  return out;
}

double forward_seconds(const Operator& work, double samples, const DeviceModel& device) {
  if (work.op == "input") return 0;
  // Only the rows of an embedding table that the sample names are read: as many bytes as come out.
  const bool table = work.op.find("embedding") != std::string::npos;
  const double parameters = table ? 0 : work.parameters * kElement;
  const double bytes = (work.input_bytes + work.output_bytes * (table ? 2 : 1)) * samples + parameters;
  return device.launch_seconds + std::max(work.flops * samples / (device.peak(DType::f32) * device.efficiency), bytes / device.bandwidth);
}

std::vector<NodeCost> costs_of(const Operator& work, const DeviceModel& device) {
  std::vector<NodeCost> costs;
  for (int samples = 1; samples <= kLargest; samples *= 2) {
    NodeCost cost;
    cost.samples = samples;
    cost.forward = forward_seconds(work, samples, device);
    cost.backward = cost.forward * (work.parameters > 0 ? 2 : 1);  // the parameters' gradients are one product more
    cost.live_bytes = work.output_bytes * samples;
    cost.parameter_bytes = work.parameters * kElement;
    cost.resident_bytes = work.parameters * kResident;
    costs.push_back(cost);
  }
  return costs;
}

}  // namespace

PlanGraph read_graphpipe(const JsonNode& root, const std::string& device) {
  const DeviceModel& model = published_devices().device(device);
  PlanGraph graph;
  if (root.has("name")) graph.name = root.at("name").text();
  NodeIds ids;
  std::vector<Operator> operators;
  root.at("nodes").each_element([&](const JsonNode& node) {
    ids.add(node.at("id"), static_cast<int>(graph.nodes.size()));
    operators.push_back(read_operator(node));
    PlanNode& out = graph.nodes.emplace_back();
    out.name = node.has("name") ? node.at("name").text() : operators.back().op;
    out.kind = operators.back().op;
    out.output_bytes = operators.back().output_bytes;
  });
  std::set<std::pair<int, int>> known;
  root.at("edges").each_element([&](const JsonNode& edge) {
    edge.check_list();
    if (edge.value().size() != 2) edge.fail(concat("has ", edge.value().size(), " entries; an edge is [from, to]"));
    std::vector<int> ends;
    edge.each_element([&](const JsonNode& id) { ends.push_back(ids.find(id)); });
    const double bytes = operators[ends[0]].output_bytes;
    add_edge(graph, known, edge, {ends[0], ends[1], bytes});
    operators[ends[1]].input_bytes += bytes;
  });
  for (std::size_t i = 0; i < operators.size(); ++i) graph.nodes[i].costs = costs_of(operators[i], model);
  return graph;
}

}  // namespace penstock
