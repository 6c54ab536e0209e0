// SPDX-License-Identifier: Apache-2.0
// A task bound to memory: the list of calls that run it.
#pragma once

#include <span>
#include <vector>

#include "penstock/program.h"
#include "program/memory_plan.h"
#include "torch/arena.h"
#include "torch/kernel.h"

namespace penstock {

class KernelCompiler;  // torch/kernel_compiler.h

// Memory for temporaries that have no place in the scratch plan (values that are copied into a result, reshapes that cannot be views). All
// tasks of a device share it, because one runs at a time. What the plan has for larger tasks is taken first.
class Spare {
 public:
  explicit Spare(c10::Device device = c10::DeviceType::CPU, Faults* faults = nullptr, KernelCompiler* compiler = nullptr)
      : device_(device), faults_(faults), compiler_(compiler) {}
  c10::Device device() const { return device_; }
  Faults* faults() const { return faults_; }
  KernelCompiler* compiler() const { return compiler_; }  // with which chains of ops become one call each; null: they do not
  void rewind(std::span<std::byte> planned) { planned_ = planned, block_ = 0, used_ = 0, taken_ = 0; }  // starts again for the next task
  std::byte* take(std::int64_t bytes);           // valid as long as this object, and what was planned
  std::int64_t bytes() const;                    // beside the plan
  std::int64_t taken() const { return taken_; }  // likewise, by the task that began last

 private:
  c10::Device device_;
  Faults* faults_;
  KernelCompiler* compiler_;
  std::span<std::byte> planned_;
  std::vector<Arena> blocks_;
  std::size_t block_ = 0;
  std::int64_t used_ = 0;  // bytes used of blocks_[block_]
  std::int64_t taken_ = 0;
};

struct BoundResult {
  at::Tensor memory;
  ResultMode mode = ResultMode::store;
};

struct BoundCall {
  Bound run;
  std::int32_t op = -1;  // op of the task's graph, the last one of a chain; for a copy the op whose result it copies, -1: an input
};

// The calls that run `task` with these operands (one per input of its graph) and results (one per output). `scratch` has at least
// plan.bytes. The calls read where operands and results lie when they are made: these may be moved by move_tensor as long as those that lie
// at one address stay together and no others come to. Throws Error for an op that neither Penstock nor the dispatcher knows.
std::vector<BoundCall> bind_task(const Task& task, const ScratchPlan& plan, std::span<const at::Tensor> operands,
                                 std::span<const BoundResult> results, std::span<std::byte> scratch, Spare& spare);

// Moves a tensor of tensor_at, and with it all that view it. Copies nothing.
void move_tensor(const at::Tensor& tensor, std::byte* memory);

}  // namespace penstock
