// Devices whose tasks can be run without communication, each by itself or all at once, with everything else as it is.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/thread_cluster.h"

namespace penstock {

// How the devices go about their next step. Changed between steps only.
struct Isolation {
  enum class Transfers : std::uint8_t {
    live,     // as ever
    capture,  // the same, and what is received is kept
    replay,   // sends vanish, a receive copies what was kept, nobody waits: values, memory traffic and order stay as they are
  } transfers = Transfers::live;
  int only = -1;  // the one device whose tasks are run, the others' are skipped; -1: all. With replay, as the others give wrong values
};

struct ProfileCluster {
  std::shared_ptr<Isolation> isolation;
  std::unique_ptr<Cluster> cluster;
};

// Threads of this process. Throws what the factory throws.
ProfileCluster make_profile_cluster(int devices, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                    const ClusterOptions& options = {});

}  // namespace penstock
