// SPDX-License-Identifier: Apache-2.0
#include "torch/backend.h"

#include "torch/choose.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/stream_hub.h"

namespace penstock {

namespace {

ExecutorFactory executors_on(const std::string& device, bool host_waits, bool fuses) {
  return torch_executor_factory(1, open_device(device), host_waits, fuses);
}

std::string processor_named(const std::string& device) {
  return processor_of(open_device(device));
}

std::unique_ptr<Hub> hub_between(const std::string& device) {
  const c10::Device on = open_device(device);
  return on.is_cpu() ? nullptr : make_stream_hub(on);
}

}  // namespace

const Backend& torch_backend() {
  static constexpr Backend backend{libtorch_version, processor_named,      executors_on,  hub_between,  make_gloo_cluster,
                                   serve_gloo,       make_elastic_cluster, serve_elastic, product_rate, choose_kernels};
  return backend;
}

}  // namespace penstock
