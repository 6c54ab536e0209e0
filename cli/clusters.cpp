#include "cli/clusters.h"

#include "runtime/thread_cluster.h"
#include "torch/executor.h"

namespace penstock {

std::unique_ptr<Cluster> local_cluster(int devices, const Config& config, std::shared_ptr<const DataSource> data) {
  ClusterOptions options;
  options.deadline = config.pipeline.deadline;
  return make_thread_cluster(devices, torch_executor_factory(), std::move(data), options);
}

std::unique_ptr<Cluster> configured_cluster(const Config& config, std::shared_ptr<const DataSource> data) {
  return local_cluster(static_cast<int>(config.pipeline.actors), config, std::move(data));
}

}  // namespace penstock
