// Whose published figures time work on a cluster.
#pragma once

#include <string>

#include "penstock/plan.h"

namespace penstock {

// `given`, else the cluster's own device, else "v100".
inline std::string figures_for(const ClusterSpec& cluster, const std::string& given = {}) {
  if (!given.empty()) return given;
  return cluster.published.empty() ? "v100" : cluster.published;
}

}  // namespace penstock
