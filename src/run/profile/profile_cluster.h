// SPDX-License-Identifier: Apache-2.0
// A cluster for profiling: its devices can run their tasks without communication, each by itself or all at once, with everything else
// unchanged.
#pragma once

#include <cstdint>
#include <memory>

#include "driver/thread_cluster.h"

namespace penstock {

// The way in which the devices run their next step. Change it between steps only.
struct Isolation {
  enum class Transfers : std::uint8_t {
    live,     // as usual
    capture,  // as usual, and what is received is kept
    replay,   // sends do nothing, a receive copies what was kept, nobody waits: values, memory traffic and order stay as they are
  } transfers = Transfers::live;
  // The only device whose tasks run, the others' are skipped; -1: all. Use it with replay, as the others give wrong values.
  int only = -1;
};

struct ProfileCluster {
  std::shared_ptr<Isolation> isolation;
  std::unique_ptr<Cluster> cluster;
};

// Its devices are threads of this process. Throws what the factory throws.
ProfileCluster make_profile_cluster(int devices, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                    const ClusterOptions& options = {});

}  // namespace penstock
