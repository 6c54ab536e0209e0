// SPDX-License-Identifier: Apache-2.0
// Devices as processes that may go and come: rank 0 is the controller alone, and every other process a device (faults.md of docs).
#pragma once

#include <memory>

#include "torch/gloo_cluster.h"

namespace penstock {

// On rank 0: waits until `devices` others have come. Throws Error as make_gloo_cluster does. One that is refused (another build or run)
// ends with the reason, and rank 0 waits for others.
std::unique_ptr<Cluster> make_elastic_cluster(const Ranks& ranks, int devices, const GlooOptions& options);

// On every other: comes, at any time, and obeys rank 0 until it says stop, then returns 0. One that was silent for so long that the others
// went on without it comes anew. Throws Error: rank 0 cannot be reached, refuses this process or is lost, or the run failed.
int serve_elastic(const Ranks& ranks, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data, const GlooOptions& options);

}  // namespace penstock
