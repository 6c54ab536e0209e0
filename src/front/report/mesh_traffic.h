// SPDX-License-Identifier: Apache-2.0
// The mesh of devices that a program runs on, and what its axes send over the links of a cluster in a step. Bytes are counted in the
// program: those of a send are its slot's, those of a collective what each member passes on in a ring (collective_seconds of
// penstock/network.h), to the next member of its group.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "penstock/plan.h"
#include "penstock/program.h"

namespace penstock {

struct MeshShape {
  struct Axis {
    std::string name;  // of the pipe, which is the first, of data, local, and those of layouts
    int size = 1;      // 0: not the same everywhere
  };
  struct Device {
    std::int32_t actor = 0, replica = 0;  // replica: its place among those of the actor that share micro-batches
    std::vector<std::int32_t> place;      // along each axis
  };
  std::vector<Axis> axes;  // the last varies fastest
  std::vector<Device> devices;

  std::size_t axis(const std::string& name) const;  // its position; axes.size(): there is none
};
std::string text_of(const MeshShape& mesh);  // "pipe 2 x data 2 x tensor 2"

// The traffic of one axis over the links of one level of the cluster.
struct LevelTraffic {
  double most = 0, all = 0;           // bytes that the busiest device sends, and that all devices do together
  std::map<Opcode, int> counts = {};  // of the device that has most transfers and collectives of a kind: how many
};
struct AxisTraffic {
  std::string axis;  // "tensor", or "data, local" where groups differ in both
  std::vector<std::vector<std::int32_t>> groups;
  std::vector<LevelTraffic> levels;  // innermost first
};
// An entry for each axis, and for each other set of axes along which groups lie; what goes to another actor is the pipe's. Throws Error
// where the cluster has another number of devices.
std::vector<AxisTraffic> traffic_of(const Program& program, const MeshShape& mesh, const ClusterSpec& cluster);

// Returns how many devices reach each other over the links of each level, or of those inside of it; innermost first.
std::vector<int> devices_of_levels(const ClusterSpec& cluster);
// The innermost level of the cluster that holds all of these devices.
std::size_t level_of(const ClusterSpec& cluster, const std::vector<std::int32_t>& devices);
// "8 devices, 300 GB/s"; without a bandwidth where it is not known.
std::string level_text(const ClusterSpec& cluster, std::size_t level);

// A table of each axis on each level that it sends over.
std::string traffic_text(const std::vector<AxisTraffic>& axes, const ClusterSpec& cluster);

}  // namespace penstock
