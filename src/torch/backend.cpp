#include "torch/backend.h"

#include "torch/choose.h"
#include "torch/executor.h"

namespace penstock {

const Backend& torch_backend() {
  static constexpr Backend backend{libtorch_version, torch_executor_factory, make_gloo_cluster, serve_gloo, product_rate, choose_kernels};
  return backend;
}

}  // namespace penstock
