// SPDX-License-Identifier: Apache-2.0
// Tests of steps run on devices of the name in PENSTOCK_TEST_DEVICE, "cpu" without it, so that each such test is one of every device.
// Where PENSTOCK_TEST_NCCL is set, they send each other tensors as processes do over NCCL.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "driver/thread_cluster.h"

namespace penstock::test {

c10::Device test_device();

std::unique_ptr<Cluster> make_test_cluster(std::size_t devices, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                           ClusterOptions options = {});
std::unique_ptr<Cluster> make_test_cluster(std::size_t devices, std::shared_ptr<const DataSource> data, ClusterOptions options = {});

// Every state tensor that the program names, whole.
std::map<std::string, std::vector<std::byte>> state_of(Cluster& cluster, const Program& program);

}  // namespace penstock::test
