// All that commands need of libtorch, as functions: a library that a program loads can give them (cli/backend.h).
#pragma once

#include <memory>
#include <string>

#include "devices/executor.h"
#include "torch/gloo_cluster.h"

namespace penstock {

struct Backend {
  std::string (*version)();  // libtorch's
  ExecutorFactory (*executors)(int threads);
  std::unique_ptr<Cluster> (*make_gloo_cluster)(const Ranks&, const ExecutorFactory&, std::shared_ptr<const DataSource>,
                                                const GlooOptions&);
  int (*serve_gloo)(const Ranks&, const ExecutorFactory&, std::shared_ptr<const DataSource>, const GlooOptions&);
  double (*product_rate)(DType);
  void (*choose_kernels)(Program&, const std::string& file);
};
const Backend& torch_backend();

}  // namespace penstock
