// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <limits>

#include "base/text.h"
#include "base/toml.h"
#include "penstock/error.h"
#include "penstock/plan.h"
#include "simulate/roofline.h"

namespace penstock {
namespace {

constexpr std::size_t kMostDevices = 100'000;

// Calls `read` for each table of [[group]]; there may be none.
template <class Read>
void each_of(const toml::table& document, const char* group, std::string_view file, Read&& read) {
  const toml::node* node = document.get(group);
  if (!node) return;
  const toml::array* tables = node->as_array();
  if (!tables || !tables->is_homogeneous(toml::node_type::table))
    throw Error(concat(place_text(file, node->source()), group, " must be tables, each headed by [[", group, "]]"));
  for (const toml::node& one : *tables) read(Section(*one.as_table(), group, file));
}

// The published thing that the name in `key` stands for. An Error for an unknown name gets the place.
template <class Find>
auto published(const Section& section, const char* key, Find&& find) {
  const std::string name = section.text(key);
  try {
    return find(published_devices(), name);
  } catch (const Error& error) {
    throw Error(section.place(key) + error.what());
  }
}

// Times are of a device of speed 1: of the first that has it or, where none has, of the first.
void note_published(const std::string& name, double speed, ClusterSpec& cluster) {
  const auto is_reference = [](const ClusterDevice& device) { return device.speed == 1; };
  const bool is_first = std::none_of(cluster.devices.begin(), cluster.devices.end(), is_reference);
  if (cluster.published.empty() || (is_first && speed == 1)) cluster.published = name;
}

void read_devices(const Section& section, ClusterSpec& cluster) {
  section.check_keys({"count", "device", "memory", "speed", "host"});
  ClusterDevice device;
  if (section.has("device")) {
    const DeviceModel model =
        published(section, "device", [](const DeviceTable& table, const std::string& name) { return table.device(name); });
    if (model.memory_bytes > 0) device.memory = static_cast<double>(model.memory_bytes);
    if (model.host) device.host = {model.host->latency, model.host->bandwidth};
  }
  if (section.has("host")) {
    const Link link = published(section, "host", [](const DeviceTable& table, const std::string& name) { return table.link(name); });
    device.host = {link.latency, link.bandwidth};
  }
  device.memory = section.number_or("memory", kGigabytes, device.memory);
  device.speed = section.number_or("speed", {}, 1);
  if (section.has("device")) note_published(section.text("device"), device.speed, cluster);
  const int count = section.has("count") ? section.whole("count", 1) : 1;
  if (cluster.devices.size() + static_cast<std::size_t>(count) > kMostDevices)
    throw Error(concat(section.place("count"), "a cluster has at most ", kMostDevices, " devices"));
  cluster.devices.insert(cluster.devices.end(), static_cast<std::size_t>(count), device);
}

// A link given as a published one, by figures, or both: figures replace the published ones.
ClusterLink read_link(const Section& section) {
  ClusterLink link;
  if (section.has("link")) {
    const Link named = published(section, "link", [](const DeviceTable& table, const std::string& name) { return table.link(name); });
    link = {named.latency, named.bandwidth};
  } else if (!section.has("bandwidth")) {
    throw Error(concat(section.place(), section.name(), " has neither a link nor a bandwidth"));
  }
  if (section.has("latency")) link.latency = section.number_or_zero("latency", kMicroseconds);
  link.bandwidth = section.number_or("bandwidth", kGigabytesPerSecond, link.bandwidth);
  return link;
}

void read_level(const Section& section, ClusterSpec& cluster) {
  section.check_keys({"size", "link", "latency", "bandwidth"});
  cluster.levels.push_back({section.whole("size", 1), read_link(section)});
}

void read_between(const Section& section, ClusterSpec& cluster) {
  section.check_keys({"devices", "link", "latency", "bandwidth"});
  const std::int64_t devices = static_cast<std::int64_t>(cluster.devices.size());
  std::vector<std::int64_t> pair;
  if (const toml::array* array = section.at("devices").as_array())
    for (const toml::node& one : *array) pair.push_back(one.value_exact<std::int64_t>().value_or(-1));
  const auto unknown = [&](std::int64_t d) { return d < 0 || d >= devices; };
  if (pair.size() != 2 || pair[0] == pair[1] || std::any_of(pair.begin(), pair.end(), unknown))
    throw Error(concat(section.place("devices"), "devices must be two different ones of 0 to ", devices - 1));
  const auto [smaller, larger] = std::minmax({static_cast<int>(pair[0]), static_cast<int>(pair[1])});
  if (!cluster.between.emplace(std::pair(smaller, larger), read_link(section)).second)
    throw Error(concat(section.place("devices"), "the link between devices ", smaller, " and ", larger, " is given twice"));
}

// Throws Error for a device without a speed whose figures are not those that times are of.
void check_speeds(const toml::table& document, std::string_view file, const ClusterSpec& cluster) {
  each_of(document, "devices", file, [&](const Section& section) {
    if (!section.has("device") || section.has("speed")) return;
    const DeviceModel &own = published_devices().device(section.text("device")), &timed = published_devices().device(cluster.published);
    if (own.f32 == timed.f32 && own.bf16 == timed.bf16) return;
    throw Error(concat(section.place("device"), "nothing says how fast ", own.name, " is beside ", timed.name),
                {"times are those of the first device without a speed; those of another are divided by its own"}, "give it a speed");
  });
}

void check_levels(const ClusterSpec& cluster, std::string_view file) {
  std::size_t devices = 1;
  for (const ClusterSpec::Level& level : cluster.levels)
    devices = std::min(devices * static_cast<std::size_t>(level.size), kMostDevices + 1);
  if (devices == cluster.devices.size()) return;
  if (cluster.levels.empty())
    throw Error(concat(file, ": nothing says what links the cluster's ", cluster.devices.size(), " devices have"), {},
                concat("give them under [[levels]], with size = ", cluster.devices.size()));
  throw Error(concat(file, ": the levels hold ", devices, " devices, the cluster has ", cluster.devices.size()),
              {concat("sizes: ", join(cluster.levels, " x ", [](const ClusterSpec::Level& level) { return std::to_string(level.size); }))},
              "the product of the levels' sizes must be the number of devices");
}

}  // namespace

ClusterSpec parse_cluster(std::string_view text, const std::string& file) {
  const toml::table document = parse_toml(text, file);
  const Section root(document, "the cluster", file);
  if (root.has("cpus"))
    throw Error(concat(root.place("cpus"), "stages are on devices, and no longer on host processors"), {}, "leave out cpus");
  root.check_keys({"name", "devices", "levels", "between"});
  ClusterSpec cluster;
  cluster.name = root.has("name") ? root.text("name") : file;
  each_of(document, "devices", file, [&](const Section& section) { read_devices(section, cluster); });
  if (cluster.devices.empty()) throw Error(concat(file, ": the cluster has no devices"), {}, "give some under [[devices]]");
  each_of(document, "levels", file, [&](const Section& section) { read_level(section, cluster); });
  check_speeds(document, file, cluster);
  check_levels(cluster, file);
  each_of(document, "between", file, [&](const Section& section) { read_between(section, cluster); });
  return cluster;
}

}  // namespace penstock
