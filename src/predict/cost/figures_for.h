// SPDX-License-Identifier: Apache-2.0
// Whose published figures time work on a cluster.
#pragma once

#include <string>

#include "penstock/plan.h"
#include "simulate/roofline.h"

namespace penstock {

// `given`, else the cluster's own device, else "v100".
inline std::string figures_for(const ClusterSpec& cluster, const std::string& given = {}) {
  if (!given.empty()) return given;
  return cluster.published.empty() ? "v100" : cluster.published;
}

// The cluster, whose devices have those figures' link to their host where nothing else is said.
inline ClusterSpec with_host_links(ClusterSpec cluster, const std::string& given) {
  const DeviceModel& device = published_devices().device(figures_for(cluster, given));
  for (ClusterDevice& one : cluster.devices)
    if (!one.host && device.host) one.host = {device.host->latency, device.host->bandwidth};
  return cluster;
}

}  // namespace penstock
