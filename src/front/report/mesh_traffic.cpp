// SPDX-License-Identifier: Apache-2.0
#include "report/mesh_traffic.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "penstock/network.h"
#include "report/table.h"

namespace penstock {
namespace {

constexpr std::size_t kPipe = 0;  // a mesh begins with it

// The axes along which the places of these devices differ; the pipe alone, where that is one of them.
std::string axis_between(const MeshShape& mesh, const std::vector<std::int32_t>& devices) {
  std::vector<std::string> names;
  for (std::size_t a = 0; a < mesh.axes.size(); ++a) {
    const auto differs = [&](std::int32_t d) { return mesh.devices[d].place[a] != mesh.devices[devices[0]].place[a]; };
    if (!std::any_of(devices.begin(), devices.end(), differs)) continue;
    names.push_back(mesh.axes[a].name);
    if (a == kPipe) break;
  }
  return join(names, ", ");
}

// Devices that differ along one axis alone.
std::vector<std::vector<std::int32_t>> groups_along(const MeshShape& mesh, std::size_t axis) {
  std::map<std::vector<std::int32_t>, std::vector<std::int32_t>> groups;  // by the other places
  for (std::size_t d = 0; d < mesh.devices.size(); ++d) {
    std::vector<std::int32_t> others = mesh.devices[d].place;
    others[axis] = 0;
    groups[others].push_back(static_cast<std::int32_t>(d));
  }
  std::vector<std::vector<std::int32_t>> out;
  for (auto& [others, devices] : groups) out.push_back(std::move(devices));
  return out;
}

// The bytes and the number of transfers that one device sends along one axis, by level.
struct Sent {
  std::vector<double> bytes;
  std::vector<std::map<Opcode, int>> counts;
};

double bytes_of(const DeviceProgram& device, const Instruction& i) {
  if (i.opcode == Opcode::send) return static_cast<double>(slot_bytes(device.slots[i.slot]));
  std::int64_t bytes = 0;
  for (SlotId operand : device.operands_of(i)) bytes = std::max(bytes, slot_bytes(device.slots[operand]));
  for (const Result& result : device.results_of(i)) bytes = std::max(bytes, slot_bytes(device.slots[result.slot]));
  return static_cast<double>(bytes);
}

class Counting {
 public:
  Counting(const Program& program, const MeshShape& mesh, const ClusterSpec& cluster) : program_(program), mesh_(mesh), cluster_(cluster) {
    for (std::size_t a = 0; a < mesh.axes.size(); ++a) axes_.push_back({mesh.axes[a].name, groups_along(mesh, a), {}});
    for (AxisTraffic& axis : axes_) axis.levels.resize(cluster.levels.size());
    for (std::size_t d = 0; d < program.devices.size(); ++d) add_device(static_cast<std::int32_t>(d));
  }
  std::vector<AxisTraffic> axes() && { return std::move(axes_); }

 private:
  void add_device(std::int32_t d) {
    std::map<std::string, Sent> sent;
    for (const Instruction& i : program_.devices[d].instructions) {
      if (i.opcode != Opcode::send && !is_collective(i.opcode)) continue;
      const std::vector<std::int32_t> pair = {std::min(d, i.peer), std::max(d, i.peer)};
      const std::vector<std::int32_t>& group = i.opcode == Opcode::send ? pair : program_.groups[i.group];
      const double members = static_cast<double>(group.size());
      const double share = i.opcode == Opcode::send ? 1 : ring_steps(i.opcode, group.size()) / members;
      const std::int32_t next = group[(*place_in_group(group, d) + 1) % group.size()];
      const std::size_t level = level_of(cluster_, {d, next});
      Sent& of_axis = sent[axis_between(mesh_, group)];
      of_axis.bytes.resize(cluster_.levels.size());
      of_axis.counts.resize(cluster_.levels.size());
      of_axis.bytes[level] += share * bytes_of(program_.devices[d], i);
      ++of_axis.counts[level][i.opcode];
      note_group(axis_between(mesh_, group), group);
    }
    for (const auto& [name, of_axis] : sent) add(of_axis, entry(name));
  }

  AxisTraffic& entry(const std::string& name) {
    const auto found = std::find_if(axes_.begin(), axes_.end(), [&](const AxisTraffic& axis) { return axis.axis == name; });
    if (found != axes_.end()) return *found;
    axes_.push_back({name, {}, std::vector<LevelTraffic>(cluster_.levels.size())});
    return axes_.back();
  }

  // Groups of several axes are those that the program has.
  void note_group(const std::string& name, const std::vector<std::int32_t>& group) {
    std::vector<std::vector<std::int32_t>>& groups = entry(name).groups;
    if (mesh_.axis(name) == mesh_.axes.size() && std::find(groups.begin(), groups.end(), group) == groups.end()) groups.push_back(group);
  }

  static void add(const Sent& sent, AxisTraffic& to) {
    for (std::size_t level = 0; level < sent.bytes.size(); ++level) {
      to.levels[level].all += sent.bytes[level];
      to.levels[level].most = std::max(to.levels[level].most, sent.bytes[level]);
      for (const auto& [opcode, count] : sent.counts[level]) {
        int& most = to.levels[level].counts[opcode];
        most = std::max(most, count);
      }
    }
  }

  const Program& program_;
  const MeshShape& mesh_;
  const ClusterSpec& cluster_;
  std::vector<AxisTraffic> axes_;
};

}  // namespace

std::size_t MeshShape::axis(const std::string& name) const {
  return static_cast<std::size_t>(std::find_if(axes.begin(), axes.end(), [&](const Axis& a) { return a.name == name; }) - axes.begin());
}

std::string text_of(const MeshShape& mesh) {
  return join(mesh.axes, " x ", [](const MeshShape::Axis& axis) {
    return axis.size > 0 ? concat(axis.name, " ", axis.size) : concat(axis.name, " of several sizes");
  });
}

std::vector<AxisTraffic> traffic_of(const Program& program, const MeshShape& mesh, const ClusterSpec& cluster) {
  if (mesh.devices.size() != cluster.devices.size())
    throw Error(
        concat("the mesh is of ", counted(std::ssize(mesh.devices), "device"), ", cluster ", quote(cluster.name), " has ",
               cluster.devices.size()),
        {concat("the mesh: ", text_of(mesh)),
         concat("the cluster's levels: ", join(devices_of_levels(cluster), ", ", [](int devices) { return counted(devices, "device"); }))},
        "the product of the mesh's axes must be the number of devices");
  return Counting(program, mesh, cluster).axes();
}

std::vector<int> devices_of_levels(const ClusterSpec& cluster) {
  std::vector<int> out;
  for (const ClusterSpec::Level& level : cluster.levels) out.push_back((out.empty() ? 1 : out.back()) * level.size);
  return out;
}

std::size_t level_of(const ClusterSpec& cluster, const std::vector<std::int32_t>& devices) {
  const std::vector<int> sizes = devices_of_levels(cluster);
  std::size_t level = 0;
  const auto is_outside = [&](std::int32_t d) { return d / sizes[level] != devices[0] / sizes[level]; };
  while (level + 1 < sizes.size() && std::any_of(devices.begin(), devices.end(), is_outside)) ++level;
  return level;
}

std::string level_text(const ClusterSpec& cluster, std::size_t level) {
  const std::string devices = counted(devices_of_levels(cluster)[level], "device");
  const double bandwidth = cluster.levels[level].link.bandwidth;
  return std::isinf(bandwidth) ? devices : concat(devices, ", ", short_decimal(bandwidth / 1e9, 4), " GB/s");
}

std::string traffic_text(const std::vector<AxisTraffic>& axes, const ClusterSpec& cluster) {
  std::vector<std::vector<std::string>> rows;
  for (const AxisTraffic& axis : axes)
    for (std::size_t level = 0; level < axis.levels.size(); ++level) {
      const LevelTraffic& sent = axis.levels[level];
      if (sent.counts.empty()) continue;
      rows.push_back({axis.axis, level_text(cluster, level), bytes_text(sent.most), bytes_text(sent.all),
                      join(sent.counts, ", ", [](const auto& c) { return concat(c.second, " ", name(c.first)); })});
    }
  if (rows.empty()) return "nothing is sent\n";
  return table({"axis", "over links of", "the busiest device sends", "all devices", "by at most, of a device"}, rows);
}

}  // namespace penstock
