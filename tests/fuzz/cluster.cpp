// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "fuzz/fixpoint.h"
#include "penstock/plan.h"

using namespace penstock;

namespace {

void check_link(const ClusterLink& link) {
  invariant(link.latency >= 0 && std::isfinite(link.latency) && link.bandwidth > 0, "a link moves bytes in a time");
}

}  // namespace

// A cluster has no text form to print: what is read has devices and links that can be counted with.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ClusterSpec cluster;
  try {
    cluster = parse_cluster(fuzz::as_text(data, size), "fuzz.toml");
  } catch (const Error&) {
    return 0;
  }
  invariant(!cluster.devices.empty(), "a cluster has devices");
  for (const ClusterDevice& device : cluster.devices)
    invariant(device.speed > 0 && std::isfinite(1e30 / device.speed) && device.memory > 0, "a device takes a time and holds something");
  for (int d = 1; d < static_cast<int>(cluster.devices.size()); ++d) check_link(cluster.link(d, 0));
  for (const auto& [pair, link] : cluster.between) check_link(link);
  return 0;
}
