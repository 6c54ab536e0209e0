#include "torch/backend.h"

#include "torch/choose.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/stream_hub.h"

namespace penstock {

namespace {

ExecutorFactory executors_on(const std::string& device, bool host_waits) {
  return torch_executor_factory(1, open_device(device), host_waits);
}

std::unique_ptr<Hub> hub_between(const std::string& device) {
  return open_device(device).is_cpu() ? nullptr : make_stream_hub();
}

}  // namespace

const Backend& torch_backend() {
  static constexpr Backend backend{libtorch_version, executors_on, hub_between,   make_gloo_cluster,
                                   serve_gloo,       product_rate, choose_kernels};
  return backend;
}

}  // namespace penstock
