// SPDX-License-Identifier: Apache-2.0
// All that commands need of libtorch, as functions: a library that a program loads can give them (cli/backend.h).
#pragma once

#include <memory>
#include <string>

#include "devices/executor.h"
#include "devices/hub.h"
#include "torch/elastic_cluster.h"

namespace penstock {

struct Backend {
  std::string (*version)();                             // libtorch's
  std::string (*processor)(const std::string& device);  // what computes there: "NVIDIA H100 80GB HBM3". Throws Error.
  // Executors on a device as run.device names it (torch/device.h); `host_waits`: over Gloo (torch/executor.h); `fuses`: chains of ops are
  // one kernel each. Throws Error.
  ExecutorFactory (*executors)(const std::string& device, bool host_waits, bool fuses);
  // Makes what connects devices of that name in one process; null: a ThreadHub connects those of the host.
  std::unique_ptr<Hub> (*make_hub)(const std::string& device);
  std::unique_ptr<Cluster> (*make_gloo_cluster)(const Ranks&, const ExecutorFactory&, std::shared_ptr<const DataSource>,
                                                const GlooOptions&);
  int (*serve_gloo)(const Ranks&, const ExecutorFactory&, std::shared_ptr<const DataSource>, const GlooOptions&);
  std::unique_ptr<Cluster> (*make_elastic_cluster)(const Ranks&, int devices, const GlooOptions&);
  int (*serve_elastic)(const Ranks&, const ExecutorFactory&, std::shared_ptr<const DataSource>, const GlooOptions&);
  double (*product_rate)(DType);
  void (*choose_kernels)(Program&, const std::string& file);
};
const Backend& torch_backend();

}  // namespace penstock
