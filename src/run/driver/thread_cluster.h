// SPDX-License-Identifier: Apache-2.0
// All devices as threads of this process: the default.
#pragma once

#include <memory>

#include "devices/cluster.h"
#include "devices/executor.h"
#include "devices/hub.h"

namespace penstock {

struct ClusterOptions {
  double deadline = 60;  // seconds that one wait may take
  double spin = -1;      // seconds a waiting thread looks before it sleeps; negative: chosen by cores and devices
  // Asked now and then while a step runs, by the thread that waits for it: true gives the step up, if no device has begun to write state. A
  // step that was given up throws Error, and changes nothing.
  std::function<bool()> interrupted = {};
  // Makes what connects the devices; none: a ThreadHub.
  std::function<std::unique_ptr<Hub>()> hub = {};
  // Devices whose executor throws PeerLost of themselves are gone, and the others go on without them (Cluster::regroup).
  bool elastic = false;
  // Wraps each device's transport (tests).
  std::function<std::unique_ptr<Transport>(int device, std::unique_ptr<Transport>)> wrap = {};
};

// Throws what the factory throws. The state of every device starts as zeros.
std::unique_ptr<Cluster> make_thread_cluster(int devices, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                             const ClusterOptions& options = {});

}  // namespace penstock
