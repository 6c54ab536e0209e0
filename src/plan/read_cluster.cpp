// A cluster's file: groups of equal devices, levels of links from the innermost, and single links that differ.
#include <algorithm>

#include "base/text.h"
#include "base/toml.h"
#include "penstock/error.h"
#include "penstock/plan.h"

namespace penstock {
namespace {

constexpr std::int64_t kMostDevices = 1 << 16;

// Calls `read` with each table of a list "[[key]]".
template <class Read>
void each_table(const TomlSection& document, const char* key, std::string_view file, Read&& read) {
  if (!document.has(key)) return;
  const toml::node& list = document.at(key);
  const auto fail = [&](const toml::node& node) {
    throw Error(concat(place_text(file, node.source()), key, " must be a list of tables"), {}, concat("write [[", key, "]]"));
  };
  if (!list.is_array()) fail(list);
  for (const toml::node& entry : *list.as_array()) {
    if (!entry.is_table()) fail(entry);
    read(TomlSection(*entry.as_table(), key, file));
  }
}

void read_devices(const TomlSection& section, ClusterSpec& cluster) {
  section.check_keys({"count", "speed", "memory"});
  const ClusterDevice device{section.number_or("speed", 1, 1), section.number_or("memory", 1, ClusterDevice().memory)};
  const std::int64_t count = section.has("count") ? section.whole("count", 1, kMostDevices) : 1;
  cluster.devices.insert(cluster.devices.end(), static_cast<std::size_t>(count), device);
}

ClusterLink read_link(const TomlSection& section) {
  return {section.amount_or("latency", 1, 0), section.number_or("bandwidth", 1, ClusterLink().bandwidth)};
}

void read_exception(const TomlSection& section, ClusterSpec& cluster) {
  section.check_keys({"between", "latency", "bandwidth"});
  const toml::array* pair = section.at("between").as_array();
  std::vector<int> ends;
  if (pair != nullptr)
    for (const toml::node& end : *pair) {
      const auto device = end.value_exact<std::int64_t>();
      if (device && *device >= 0 && *device < static_cast<std::int64_t>(cluster.devices.size())) ends.push_back(static_cast<int>(*device));
    }
  if (pair == nullptr || pair->size() != 2 || ends.size() != 2 || ends[0] == ends[1])
    throw Error(concat(section.place("between"), "links.between must be two devices"),
                {concat("devices are 0 to ", cluster.devices.size() - 1)}, "between = [0, 1]");
  std::sort(ends.begin(), ends.end());
  if (!cluster.between.emplace(std::pair(ends[0], ends[1]), read_link(section)).second)
    throw Error(concat(section.place("between"), "the link between ", ends[0], " and ", ends[1], " is there twice"));
}

void check_levels(const ClusterSpec& cluster, std::string_view file) {
  std::size_t held = 1;
  for (const ClusterSpec::Level& level : cluster.levels)
    if (held <= cluster.devices.size()) held *= static_cast<std::size_t>(level.size);
  if (held == cluster.devices.size() || (cluster.levels.empty() && cluster.devices.size() == 1)) return;
  throw Error(concat(file, ": the levels hold ", held, " devices, there are ", cluster.devices.size()),
              {"sizes: " + join(cluster.levels, " x ", [](const auto& level) { return concat(level.size); })},
              "give levels, innermost first, whose sizes multiply to the number of devices");
}

}  // namespace

ClusterSpec parse_cluster(std::string_view text, const std::string& file) {
  const toml::table table = parse_toml(text, file);
  const TomlSection document(table, "the cluster", file);
  document.check_keys({"name", "cpus", "devices", "levels", "links"});
  ClusterSpec cluster;
  cluster.name = document.has("name") ? document.text("name") : file;
  if (document.has("cpus")) cluster.cpus = static_cast<int>(document.whole("cpus", 0, kMostDevices));
  each_table(document, "devices", file, [&](const TomlSection& section) { read_devices(section, cluster); });
  if (cluster.devices.empty()) throw Error(concat(file, ": the cluster has no devices"), {}, "give one at least: [[devices]]");
  if (static_cast<std::int64_t>(cluster.devices.size()) > kMostDevices)
    throw Error(concat(file, ": ", cluster.devices.size(), " devices are too many"), {concat("at most ", kMostDevices)});
  each_table(document, "levels", file, [&](const TomlSection& section) {
    section.check_keys({"size", "latency", "bandwidth"});
    cluster.levels.push_back({static_cast<int>(section.whole("size", 1, kMostDevices)), read_link(section)});
  });
  check_levels(cluster, file);
  each_table(document, "links", file, [&](const TomlSection& section) { read_exception(section, cluster); });
  return cluster;
}

}  // namespace penstock
