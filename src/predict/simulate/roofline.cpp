// SPDX-License-Identifier: Apache-2.0
#include "simulate/roofline.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/toml.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "simulate/devices_toml.h"

namespace penstock {
namespace {

constexpr FileUnit kTera{1e12};

struct Defaults {
  double efficiency, launch_seconds;
};

// Reads [reach]: for each op whose kernels reach another share of the published bandwidth, its bandwidth.
std::map<std::string, double> read_bandwidths(const Section& section, const std::string& file) {
  const toml::node& node = section.at("reach");
  if (!node.is_table()) throw Error(section.place("reach") + section.name() + ".reach must be a table of ops and shares");
  const Section shares(*node.as_table(), section.name() + ".reach", file);
  const double published = section.number("bandwidth", kGigabytesPerSecond);
  std::map<std::string, double> out;
  for (const auto& [op, share] : *node.as_table()) {
    const std::string name(op.str());
    if (!find_op(name)) throw Error(concat(section.place("reach"), section.name(), ".reach: there is no op ", quote(name)));
    out[name] = published * shares.number(name.c_str(), {});
  }
  return out;
}

DeviceModel read_device(const Section& section, const Defaults& defaults, const DeviceTable& table) {
  section.check_keys({"title", "source", "f64", "f32", "f16", "bf16", "bandwidth", "memory", "host", "launch", "efficiency", "attention",
                      "attention_efficiency", "memory_efficiency", "processors", "elementwise_launch", "reach"});
  DeviceModel device;
  device.name = section.name();
  device.title = section.text("title");
  device.source = section.text("source");
  device.f64 = section.number("f64", kTera);
  device.f32 = section.number("f32", kTera);
  device.f16 = section.number_or("f16", kTera, 0);
  device.bf16 = section.number_or("bf16", kTera, 0);
  device.bandwidth = section.number("bandwidth", kGigabytesPerSecond) * section.number_or("memory_efficiency", {}, 1);
  device.memory_bytes = static_cast<std::int64_t>(section.number_or("memory", kGigabytes, 0));
  if (section.has("host")) device.host = table.link(section.text("host"));
  device.launch_seconds = section.number_or("launch", kMicroseconds, defaults.launch_seconds);
  device.elementwise_launch_seconds = section.number_or("elementwise_launch", kMicroseconds, device.launch_seconds);
  if (section.has("reach")) device.bandwidths = read_bandwidths(section, table.file);
  device.efficiency = section.number_or("efficiency", {}, defaults.efficiency);
  device.attention_efficiency = section.number_or("attention_efficiency", {}, device.efficiency);
  device.processors = section.number_or("processors", {}, 0);
  if (section.has("attention")) {
    device.scores_in_memory = section.text("attention") == "in memory";
    if (!device.scores_in_memory) throw Error(section.place("attention") + "attention must be \"in memory\"");
  }
  return device;
}

Link read_link(const Section& section) {
  section.check_keys({"bandwidth", "latency", "source"});
  section.text("source");
  Link link;
  link.bandwidth = section.number("bandwidth", kGigabytesPerSecond);
  link.latency = section.number("latency", kMicroseconds);
  return link;
}

template <class Read>
void each_section(const toml::table& document, const char* group, std::string_view file, Read&& read) {
  const toml::node* node = document.get(group);
  if (!node) return;
  if (!node->is_table()) throw Error(concat(place_text(file, node->source()), group, " must be a table"));
  for (const auto& [key, value] : *node->as_table()) {
    if (!value.is_table()) throw Error(concat(place_text(file, value.source()), group, ".", key.str(), " must be a table"));
    read(Section(*value.as_table(), std::string(key.str()), file));
  }
}

template <class Value>
const Value& find(const std::map<std::string, Value>& values, const char* what, const std::string& name, const std::string& file) {
  const auto found = values.find(name);
  if (found != values.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [key, ignored] : values) known.push_back(key);
  fail_unknown_key(concat("there is no ", what, " ", quote(name), " in ", file), name, known);
}

DType compute_dtype(const Graph& graph, const Op& op) {
  for (const auto* values : {&op.results, &op.operands})
    for (ValueId value : *values)
      if (is_floating(graph.type(value).dtype)) return graph.type(value).dtype;
  return DType::f32;
}

// Whether scores are products that softmax joins on chip, forward or backward.
bool is_attention(const Op& op) {
  return op.name.starts_with("scaled_dot_product_attention") || op.name.starts_with("attention_in_ranges") ||
         op.name.starts_with("aten::_scaled_dot_product_");
}

// Attention by products over whole matrices of scores. How often the scores pass the memory: forward the first product writes them,
// scaling, mask and softmax in one kernel read and write them, dropout reads and writes them and writes its mask of a byte each, the second
// product reads them. Backward a product writes their gradient; dropout's reads it, the mask, and writes it; softmax's reads it and the
// probabilities, and writes it; of the other three products one reads the probabilities, two the gradient.
double attention_seconds(const Graph& graph, const Op& op, bool backward, const DeviceModel& device) {
  constexpr double kMaskBytes = 1;
  const TensorType &q = graph.type(op.operands[backward ? 1 : 0]), &k = graph.type(op.operands[backward ? 2 : 1]);
  const double product = 2 * static_cast<double>(q.elements()) * static_cast<double>(k.shape[2]);
  const double scores = static_cast<double>(q.elements()) / static_cast<double>(q.shape[3]) * static_cast<double>(k.shape[2]);
  const double products = backward ? 4 : 2, passes = backward ? 9 : 6, kernels = backward ? 6 : 4;
  return kernels * device.launch_seconds + products * product / (device.peak(q.dtype) * device.efficiency) +
         scores * (passes * static_cast<double>(byte_size(q.dtype)) + kMaskBytes) / device.bandwidth;
}

// Attention on chip goes in tiles of queries (backward of keys), of which a processor has one at a time: equal ones go in waves. Under a
// causal mask they differ, and as the longest is not begun first, all ends about one such later than an even division would. A backward
// has a kernel ahead, for the sums of rows, and one behind, for the gradients of queries. `flops`: those that the mask leaves.
double tiled_seconds(const Graph& graph, const Op& op, bool backward, double flops, const DeviceModel& device) {
  constexpr std::int64_t kTile = 128;
  const TensorType &q = graph.type(op.operands[backward ? 1 : 0]), &k = graph.type(op.operands[backward ? 2 : 1]);
  const std::int64_t tiles = q.shape[0] * q.shape[1] * (((backward ? k : q).shape[2] + kTile - 1) / kTile);
  const bool causal = attribute<bool>(op, "is_causal");
  const double longest = (causal ? 2 : 1) * flops / static_cast<double>(tiles);
  const double even = causal ? flops / device.processors + longest : std::ceil(static_cast<double>(tiles) / device.processors) * longest;
  return (backward ? 3 : 1) * device.launch_seconds + even * device.processors / (device.peak(q.dtype) * device.attention_efficiency);
}

}  // namespace

double DeviceModel::peak(DType dtype) const {
  const double published = dtype == DType::f64 ? f64 : dtype == DType::f16 ? f16 : dtype == DType::bf16 ? bf16 : f32;
  return published > 0 ? published : f32;
}

const DeviceModel& DeviceTable::device(const std::string& name) const {
  return find(devices, "device", name, file);
}

const Link& DeviceTable::link(const std::string& name) const {
  return find(links, "link", name, file);
}

DeviceTable parse_devices(std::string_view text, const std::string& file) {
  const toml::table document = parse_toml(text, file);
  Section(document, "the file", file).check_keys({"defaults", "devices", "links"});
  DeviceTable table;
  table.file = file;
  Defaults defaults{1, 0};
  if (const toml::node* node = document.get("defaults")) {
    if (!node->is_table()) throw Error(concat(place_text(file, node->source()), "defaults must be a table"));
    const Section section(*node->as_table(), "defaults", file);
    section.check_keys({"efficiency", "launch"});
    defaults = {section.number_or("efficiency", {}, 1), section.number_or("launch", kMicroseconds, 0)};
  }
  each_section(document, "links", file, [&](const Section& s) { table.links[s.name()] = read_link(s); });
  each_section(document, "devices", file, [&](const Section& s) { table.devices[s.name()] = read_device(s, defaults, table); });
  return table;
}

const DeviceTable& published_devices() {
  static const DeviceTable table = parse_devices(kDevicesToml, "devices.toml");
  return table;
}

double roofline_seconds(const Graph& graph, const DeviceModel& device) {
  double seconds = 0;
  for (const Op& op : graph.ops) {
    const OpCost work = cost(graph, op);
    if (work.flops == 0 && work.bytes == 0) continue;  // a view
    const bool backward = op.name == "scaled_dot_product_attention_backward",
               attention = backward || op.name == "scaled_dot_product_attention";
    if (attention && (device.scores_in_memory || device.processors > 0)) {
      seconds +=
          device.scores_in_memory ? attention_seconds(graph, op, backward, device) : tiled_seconds(graph, op, backward, work.flops, device);
      continue;
    }
    const auto measured = device.bandwidths.find(op.name);
    const double bandwidth = measured == device.bandwidths.end() ? device.bandwidth : measured->second;
    const OpDefinition* const known = find_op(op.name);
    const double launch = known && known->elementwise ? device.elementwise_launch_seconds : device.launch_seconds;
    const double reached = is_attention(op) ? device.attention_efficiency : device.efficiency;
    seconds += launch + std::max(work.flops / (device.peak(compute_dtype(graph, op)) * reached), work.bytes / bandwidth);
  }
  return seconds;
}

}  // namespace penstock
