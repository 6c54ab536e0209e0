// SPDX-License-Identifier: Apache-2.0
#include "torch/test_cluster.h"

#include <cstdlib>
#include <utility>

#include "program/piece.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/nccl_transport.h"
#include "torch/stream_hub.h"
#include "torch/stream_lanes.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

namespace penstock::test {
namespace {

// Each device is a member of NCCL's own, as one of a process would be. Where one fails, the others find it lost.
class NcclHub final : public Hub {
 public:
  std::unique_ptr<Transport> endpoint(int, Executor& executor) override {
    return make_nccl_transport(store_, dynamic_cast<StreamLanes&>(*executor.lanes()), std::chrono::seconds(60));
  }
  void abort() override {}
  void reset() override {}

 private:
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

}  // namespace

c10::Device test_device() {
  const char* const given = std::getenv("PENSTOCK_TEST_DEVICE");
  return open_device(given ? given : "cpu");
}

std::unique_ptr<Cluster> make_test_cluster(std::size_t devices, const ExecutorFactory& executor, std::shared_ptr<const DataSource> data,
                                           ClusterOptions options) {
  const c10::Device device = test_device();
  if (!device.is_cpu()) options.hub = [device] { return make_stream_hub(device); };
  if (std::getenv("PENSTOCK_TEST_NCCL")) options.hub = [] { return std::make_unique<NcclHub>(); };
  return make_thread_cluster(static_cast<int>(devices), executor, std::move(data), options);
}

std::unique_ptr<Cluster> make_test_cluster(std::size_t devices, std::shared_ptr<const DataSource> data, ClusterOptions options) {
  return make_test_cluster(devices, torch_executor_factory(1, test_device()), std::move(data), std::move(options));
}

std::map<std::string, std::vector<std::byte>> state_of(Cluster& cluster, const Program& program) {
  std::map<std::string, std::vector<std::byte>> out;
  for (const DeviceProgram& device : program.devices)
    for (const Slot& slot : device.slots)
      for (const std::string& name : slot.names) {
        const std::string tensor = parse_piece(name).tensor;
        if (!out.contains(tensor)) out.emplace(tensor, cluster.state(tensor));
      }
  return out;
}

}  // namespace penstock::test
