// SPDX-License-Identifier: Apache-2.0
#include "torch/fake_runs.h"

#include <dlfcn.h>

#include <functional>
#include <utility>
#include <vector>

#include "devices/forwarding_executor.h"
#include "support/fake_device.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/stream_lanes.h"

namespace penstock::test {
namespace {

template <class F>
F* standin_function(const char* name) {
  return reinterpret_cast<F*>(dlsym(dlopen("libpenstock_standin.so", RTLD_LAZY | RTLD_NOLOAD), name));
}

class FakeRuns final : public ForwardingExecutor {
 public:
  explicit FakeRuns(bool looks) : ForwardingExecutor(make_torch_executor(1, open_device("standin"))), looks_(looks) {}

  // The inner executor has no kernels for these tasks: what it is given instead of runs it is never asked to issue.
  void load(std::shared_ptr<const Program> program, int device) override {
    own_ = program;
    device_ = &own_->devices[static_cast<std::size_t>(device)];
    auto without_runs = std::make_shared<Program>(*program);
    for (DeviceProgram& one : without_runs->devices)
      for (Instruction& instruction : one.instructions)
        if (instruction.opcode == Opcode::run) instruction.opcode = Opcode::copy;
    ForwardingExecutor::load(std::move(without_runs), device);
  }

  Event issue(const Instruction& instruction) override {
    if (instruction.opcode != Opcode::run) return ForwardingExecutor::issue(instruction);
    auto& lanes = dynamic_cast<StreamLanes&>(*ForwardingExecutor::lanes());
    return lanes.enqueue(DeviceLane::compute, [&] { return give(instruction, lanes), true; });
  }

 private:
  void give(const Instruction& instruction, const StreamLanes& lanes) {
    static auto* const enqueue = standin_function<void(void*, const std::function<void()>&)>("penstock_standin_enqueue");
    static auto* const bytes_of = standin_function<void*(const void*)>("penstock_standin_bytes");
    const auto at = [&](SlotId slot) {
      const std::span<std::byte> shown = address(slot);
      return std::span(static_cast<std::byte*>(bytes_of(shown.data())), shown.size());
    };
    std::vector<std::span<const std::byte>> operands;
    std::vector<std::span<std::byte>> results;
    std::vector<Result> modes;
    for (const SlotId slot : device_->operands_of(instruction)) operands.push_back(at(slot));
    for (const Result& result : device_->results_of(instruction)) {
      results.push_back(at(result.slot));
      modes.push_back(result);
    }
    enqueue(functions_of(lanes.device())->stream_handle(lanes.stream(DeviceLane::compute)),
            [=, program = own_] { fake_run(instruction, operands, results, modes); });
    if (looks_) synchronise(lanes.device());
  }

  const bool looks_;
  std::shared_ptr<const Program> own_;
  const DeviceProgram* device_ = nullptr;
};

}  // namespace

std::unique_ptr<Executor> make_standin_fake(bool looks) {
  return std::make_unique<FakeRuns>(looks);
}

}  // namespace penstock::test
