// SPDX-License-Identifier: Apache-2.0
// Devices without kernels: what the runtime is tested with. Results are a hash of the operands' bytes, so a wrong order, a missed
// wait or memory that was used again too early changes the outputs.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>

#include "devices/executor.h"

namespace penstock {

struct FakeOptions {
  std::uint64_t seed = 0;
  std::chrono::microseconds longest{0};  // each run or transfer takes a random time up to this; zero: it is complete on return
};

// Writes the results of a fake run: every 8 bytes of the result are a hash of their place, the task, and all operands' bytes; `add` adds
// them (as unsigned words) to what the slot holds. A copy copies, also from and to the host. The last bytes of a slot, if they fill no
// word, are left zero.
void fake_run(const Instruction& instruction, std::span<const std::span<const std::byte>> operands,
              std::span<const std::span<std::byte>> results, std::span<const Result> modes);

// Runs are fake but for those of tasks that only move elements, as a move of state has them (lower/move_state.h).
// Slots lie at their planned offsets where there is a plan, else apart. Memory of step and host slots starts as 0xA5. The host waits; with
// lanes of thread_lanes.h the device can.
std::unique_ptr<Executor> make_fake_executor(const FakeOptions& options);

// `inner`, but each transfer begins and is reported done only after a random time: transfers complete in any order.
std::unique_ptr<Transport> make_fake_transport(std::unique_ptr<Transport> inner, const FakeOptions& options);

}  // namespace penstock
