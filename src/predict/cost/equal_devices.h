// SPDX-License-Identifier: Apache-2.0
// A cluster for planners that assume equal devices and one bandwidth: the worst of each.
#pragma once

#include <algorithm>

#include "base/numbers.h"
#include "cost/cost_model.h"

namespace penstock {

struct EqualDevices {
  int count = 0;
  double speed = kInfinity;
  double memory = kInfinity;     // bytes
  double bandwidth = kInfinity;  // bytes per second
};

inline EqualDevices equal_devices(const ClusterSpec& cluster) {
  const ClusterDevice device = weakest(cluster);
  EqualDevices out{.count = static_cast<int>(cluster.devices.size()), .speed = device.speed, .memory = device.memory};
  for (const ClusterSpec::Level& level : cluster.levels)
    if (level.size > 1) out.bandwidth = std::min(out.bandwidth, level.link.bandwidth);
  for (const auto& [pair, link] : cluster.between) out.bandwidth = std::min(out.bandwidth, link.bandwidth);
  return out;
}

}  // namespace penstock
