#include "torch/measure.h"

#include <algorithm>

#include "driver/thread_cluster.h"
#include "penstock/error.h"
#include "profile/profile.h"
#include "torch/executor.h"
#include "torch/given_rows.h"

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

std::unique_ptr<Cluster> threads_with(int devices, int threads, const HostTensors& data) {
  return make_thread_cluster(devices, torch_executor_factory(threads), std::make_shared<GivenData>(data));
}

}  // namespace

Costs measure_here(const std::vector<Program>& programs, const HostTensors& state, const HostTensors& data, int threads, int rounds) {
  StateSource source;
  source.kind = StateSource::Kind::values;
  for (const auto& [name, tensor] : state) source.values[name] = tensor.bytes;
  ProfileOptions options;
  options.rounds = rounds;
  options.input = [](std::int64_t step, const Program&) {
    StepInput input;
    input.step = step;
    return input;
  };
  const std::unique_ptr<Cluster> cluster = threads_with(static_cast<int>(programs.at(0).devices.size()), threads, data);
  Costs out = measure_costs(*cluster, nullptr, programs, source, options);
  out.machine = describe_machine("libtorch " + libtorch_version());
  return out;
}

void measure_link_here(std::int64_t bytes, int rounds, Costs& costs) {
  const HostTensors none;
  const std::unique_ptr<Cluster> two = threads_with(2, 1, none);
  measure_link(*two, "threads", bytes, rounds, costs);
}

}  // namespace penstock
