#include "torch/measure.h"

#include <algorithm>

#include "driver/thread_cluster.h"
#include "penstock/error.h"
#include "profile/profile.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/given_rows.h"
#include "torch/stream_hub.h"

namespace penstock {
namespace {

// Data by name, as each step reads it again.
class GivenData : public DataSource {
 public:
  explicit GivenData(const HostTensors& tensors) : tensors_(tensors) {}

  void fill(const Port& port, const StepInput&, std::int64_t first_row, std::int64_t, std::span<std::byte> out) const override {
    const auto found = tensors_.find(port.name);
    if (found == tensors_.end()) {
      std::ranges::fill(out, std::byte{0});
      return;
    }
    copy_rows(found->second, port, first_row, out);
  }

 private:
  const HostTensors& tensors_;
};

std::unique_ptr<Cluster> cluster_of(int devices, const Measuring& how, const HostTensors& data) {
  const c10::Device on = open_device(how.device);
  ClusterOptions options;
  if (!on.is_cpu()) options.hub = [on] { return make_stream_hub(on); };
  return make_thread_cluster(devices,
                             torch_executor_factory(how.threads, on, false, how.fuse ? std::make_shared<KernelCompiler>(on) : nullptr),
                             std::make_shared<GivenData>(data), options);
}

ProfileOptions options_of(const Measuring& how) {
  ProfileOptions options{.by_itself = how.device != "cpu", .rounds = how.rounds, .input = {}};
  options.input = [](std::int64_t step, const Program&) {
    StepInput input;
    input.step = step;
    return input;
  };
  return options;
}

}  // namespace

Costs measure_here(const std::vector<Program>& programs, const HostTensors& state, const HostTensors& data, const Measuring& how) {
  StateSource source;
  source.kind = StateSource::Kind::values;
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
