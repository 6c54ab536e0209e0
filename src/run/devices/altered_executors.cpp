// SPDX-License-Identifier: Apache-2.0
#include "devices/altered_executors.h"

#include <algorithm>
#include <chrono>

#include "devices/forwarding_executor.h"

namespace penstock {
namespace {

class Straggler : public ForwardingExecutor {
 public:
  Straggler(std::unique_ptr<Executor> inner, double factor) : ForwardingExecutor(std::move(inner)), factor_(factor) {}

  Event issue(const Instruction& instruction) override {
    using Clock = std::chrono::steady_clock;
    const Clock::time_point begin = Clock::now();
    const Event event = ForwardingExecutor::issue(instruction);
    if (instruction.opcode != Opcode::run) return event;
    const auto end = begin + std::chrono::duration_cast<Clock::duration>((Clock::now() - begin) * factor_);
    while (Clock::now() < end) {
    }
    return event;
  }

 private:
  double factor_;
};

class Issued : public ForwardingExecutor {
 public:
  using ForwardingExecutor::ForwardingExecutor;
  bool replays() const override { return false; }
};

}  // namespace

ExecutorFactory held_back(ExecutorFactory executors, std::vector<double> factors) {
  if (std::ranges::all_of(factors, [](double factor) { return factor == 1; })) return executors;
  return [executors = std::move(executors), factors = std::move(factors)](int device) -> std::unique_ptr<Executor> {
    const double factor = device < std::ssize(factors) ? factors[static_cast<std::size_t>(device)] : 1;
    std::unique_ptr<Executor> inner = executors(device);
    if (factor == 1) return inner;
    return std::make_unique<Straggler>(std::move(inner), factor);
  };
}

ExecutorFactory issued_each_time(ExecutorFactory executors) {
  return
      [executors = std::move(executors)](int device) -> std::unique_ptr<Executor> { return std::make_unique<Issued>(executors(device)); };
}

}  // namespace penstock
