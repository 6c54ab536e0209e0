// SPDX-License-Identifier: Apache-2.0
// Makes the cluster of devices that a command runs on.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "devices/cluster.h"
#include "devices/executor.h"
#include "profile/workbench.h"

namespace penstock {

int devices_in(const std::vector<int>& groups);
// The devices of each actor as text: "2", or "2, 1, 2" where they differ.
std::string groups_text(const std::vector<int>& groups);

// On run.device; what run.straggler names is held back. `groups`: the number of devices of each actor.
ExecutorFactory executors_of(const Config& config, const std::vector<int>& groups);

// A cluster of `devices` threads of this process, whatever the backend.
std::unique_ptr<Cluster> local_cluster(int devices, const Config& config, std::shared_ptr<const DataSource> data);

// The configuration and the models must outlive it.
Workbench workbench_of(const Config& config, const ModelRegistry& models);

// Throws Error where several processes were started for a configuration that runs in one.
void check_processes(const Config& config);

// A cluster on the configuration's backend. `groups`: the number of devices of each actor (Prepared::replicas). All processes must run the
// same `command`, on the same data and configuration. Null in a process that is not the controller: it has then served until the controller
// ended. Throws Error (backend gloo or nccl without a launcher, a wrong number of processes, a port in use, a lost peer, a process that
// runs something else).
std::unique_ptr<Cluster> configured_cluster(const std::string& command, const Config& config, const std::vector<int>& groups,
                                            std::shared_ptr<const DataSource> data);

}  // namespace penstock
