#include "torch/test_cluster.h"

#include <cstdlib>
#include <utility>

#include "program/piece.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/stream_hub.h"

namespace penstock::test {

c10::Device test_device() {
  const char* const given = std::getenv("PENSTOCK_TEST_DEVICE");
  return open_device(given ? given : "cpu");
}

std::unique_ptr<Cluster> make_test_cluster(std::size_t devices, std::shared_ptr<const DataSource> data, ClusterOptions options) {
  const c10::Device device = test_device();
  if (!device.is_cpu()) options.hub = make_stream_hub;
  return make_thread_cluster(static_cast<int>(devices), torch_executor_factory(1, device), std::move(data), options);
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
