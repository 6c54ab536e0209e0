// SPDX-License-Identifier: Apache-2.0
#include "torch/run_step.h"

#include "driver/thread_cluster.h"
#include "models/registry.h"
#include "support/dag_model.h"
#include "support/thread_lanes.h"
#include "torch/executor.h"
#include "torch/test_cluster.h"

namespace penstock::test {
namespace {

// The cluster's devices wait by themselves, on lanes of the host's threads.
std::unique_ptr<Cluster> make_lane_cluster(std::size_t devices, std::shared_ptr<const DataSource> data) {
  std::vector<std::shared_ptr<DeviceLanes>> lanes;
  for (std::size_t d = 0; d < devices; ++d) lanes.push_back(make_thread_lanes(d, std::chrono::microseconds(50)));
  ClusterOptions options;
  options.wrap = [lanes](int device, std::unique_ptr<Transport> inner) {
    return make_lane_transport(std::move(inner), lanes[static_cast<std::size_t>(device)]);
  };
  const auto executor = [lanes](int device) { return make_lane_executor(make_torch_executor(), lanes[static_cast<std::size_t>(device)]); };
  return make_thread_cluster(static_cast<int>(devices), executor, std::move(data), options);
}

StepGradients first_step(Cluster& cluster, const Program& program, const StateSource& state) {
  cluster.load(program);
  cluster.set_state(state);
  return step_gradients(program, cluster, state.parameters, state.seed);
}

}  // namespace

StepGradients step_of(const Config& config, const Prepared& prepared, const Program& program, bool on_lanes) {
  return step_on(std::make_shared<RandomBatch>(data_of(config, *prepared.model), vocabulary_of(config)), config, prepared, program,
                 on_lanes);
}

StepGradients step_on(std::shared_ptr<const DataSource> data, const Config& config, const Prepared& prepared, const Program& program,
                      bool on_lanes) {
  const auto cluster = on_lanes && test_device().is_cpu() ? make_lane_cluster(program.devices.size(), std::move(data))
                                                          : make_test_cluster(program.devices.size(), std::move(data));
  return first_step(*cluster, program, {.seed = config.train.seed, .parameters = prepared.parameters});
}

StepGradients step_of(const Model& model, const Program& program) {
  const auto data = std::make_shared<RandomBatch>(text_ports(kContext), kVocabulary);
  return first_step(*make_test_cluster(program.devices.size(), data), program, {.parameters = model.parameters()});
}

StepGradients sequential_step(const Config& config, std::int64_t microbatches) {
  const Prepared prepared = prepare_sequential(config, builtin_models(), microbatches);
  return step_of(config, prepared, compile_gradients(config, prepared));
}

}  // namespace penstock::test
