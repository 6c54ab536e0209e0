// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "penstock/plan.h"

namespace penstock {

ClusterLink ClusterSpec::link(int a, int b) const {
  if (const auto found = between.find(std::minmax(a, b)); found != between.end()) return found->second;
  int together = 1;  // number of devices in a group of this level
  for (const Level& level : levels) {
    together *= level.size;
    if (a / together == b / together) return level.link;
  }
  invariant(levels.empty(), "the last level holds all devices");
  return {};
}

ClusterSpec uniform_cluster(int devices, double bandwidth, double latency, double memory) {
  if (devices < 1) throw Error(concat("a cluster of ", devices, " devices"), {}, "give one device at least");
  constexpr int kMost = 100'000;  // the limit of a cluster's file too
  if (devices > kMost) throw Error(concat("a cluster of ", devices, " devices"), {}, concat("a cluster has at most ", kMost));
  if (!(bandwidth > 0)) throw Error(concat("a bandwidth of ", number(bandwidth), " bytes per second"), {}, "give a positive one");
  if (!(latency >= 0)) throw Error(concat("a latency of ", number(latency), " seconds"), {}, "give none, or a positive one");
  if (!(memory > 0)) throw Error(concat("devices with ", number(memory), " bytes of memory"), {}, "give a positive size");
  ClusterSpec cluster;
  cluster.name = concat(devices, " equal devices");
  cluster.devices.assign(devices, {1, memory});
  cluster.levels = {{devices, {latency, bandwidth}}};
  return cluster;
}

}  // namespace penstock
