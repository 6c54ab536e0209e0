// SPDX-License-Identifier: Apache-2.0
#include "torch/measure.h"

#include "base/device_name.h"
#include "driver/thread_cluster.h"
#include "profile/profile.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/given_data.h"
#include "torch/stream_hub.h"

namespace penstock {
namespace {

std::unique_ptr<Cluster> cluster_of(int devices, const Measuring& how, const HostTensors& data) {
  const c10::Device on = open_device(how.device);
  const auto given = std::make_shared<GivenData>(/*others_are_zero=*/true);
  given->tensors = &data;
  ClusterOptions options;
  if (!on.is_cpu()) options.hub = [on] { return make_stream_hub(on); };
  return make_thread_cluster(devices, torch_executor_factory(how.threads, on, false, how.fuse), given, options);
}

ProfileOptions options_of(const Measuring& how) {
  return {.by_itself = !is_host(how.device), .rounds = how.rounds, .input = [](std::int64_t step, const Program&) {
            return StepInput{.step = step};
          }};
}

}  // namespace

Costs measure_here(const std::vector<Program>& programs, const HostTensors& state, const HostTensors& data, const Measuring& how) {
  StateSource source{.kind = StateSource::Kind::values};
  for (const auto& [name, tensor] : state) source.values[name] = tensor.bytes;
  const std::unique_ptr<Cluster> cluster = cluster_of(static_cast<int>(programs.at(0).devices.size()), how, data);
  Costs out = measure_costs(*cluster, nullptr, programs, source, options_of(how));
  out.machine = describe_machine("libtorch " + libtorch_version(), processor_of(open_device(how.device)));
  return out;
}

void measure_link_here(std::int64_t bytes, const Measuring& how, Costs& costs) {
  const HostTensors none;
  const std::unique_ptr<Cluster> two = cluster_of(2, how, none);
  measure_link(*two, options_of(how), bytes, costs);
}

}  // namespace penstock
