#include "torch/executor.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "torch/bind.h"
#include "torch/state_store.h"

namespace penstock {
namespace {

// Counts what kernels allocate on this thread.
class AllocationCount : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t size, std::size_t, std::size_t, c10::Device) override {
    now_ += size;
    run_peak = std::max(run_peak, now_);
    peak = std::max(peak, now_);
  }
  void reportOutOfMemory(std::int64_t, std::size_t, std::size_t, c10::Device) override {}
  bool memoryProfilingEnabled() const override { return true; }

  std::int64_t peak = 0, run_peak = 0;

 private:
  std::int64_t now_ = 0;
};

class TorchExecutor final : public Executor {
 public:
  explicit TorchExecutor(int threads) { at::set_num_threads(threads); }

  void load(std::shared_ptr<const Program> program, int device) override;
  std::span<std::byte> address(SlotId slot) override {
    return {addresses_[slot.index()], static_cast<std::size_t>(slot_bytes(device_->slots[slot.index()]))};
  }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override;
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override;
  Event issue(const Instruction& instruction) override;
  bool done(Event) override { return true; }
  bool wait(Event, Deadline) override { return true; }
  std::int64_t extra_bytes() const override { return spare_.bytes() + allocations_->peak; }
  std::int64_t last_run_bytes() const override { return last_spare_ + allocations_->run_peak; }

 private:
  struct Frame {
    TaskId task;
    std::vector<BoundCall> calls;
    std::int64_t spare = 0;  // bytes of spare_ that they use
  };
  void run(const Frame& frame) const;
  void place_slots();
  void bind_instruction(const Instruction& instruction);
  Frame bind_run(const Instruction& instruction);
  std::vector<std::int64_t> frame_key(const Instruction& instruction) const;
  void copy(const Instruction& instruction);
  void append_parts(SlotId slot, std::vector<at::Tensor>& out) const;

  std::shared_ptr<const Program> program_;
  const DeviceProgram* device_ = nullptr;
  StateStore state_;
  Arena step_, scratch_, host_;
  Spare spare_;
  std::int64_t last_spare_ = 0;         // of the last run
  std::vector<std::byte*> addresses_;   // by SlotId
  std::vector<ScratchPlan> plans_;      // by TaskId; made on first use
  std::vector<Frame> frames_;           // one per task and distinct memory
  std::vector<std::int32_t> frame_of_;  // by instruction; -1: no run
  std::map<std::vector<std::int64_t>, std::int32_t> frame_by_key_;
  std::shared_ptr<AllocationCount> allocations_ = std::make_shared<AllocationCount>();
};

void TorchExecutor::load(std::shared_ptr<const Program> program, int device) {
  at::NoGradGuard no_grad;
  program_ = std::move(program);
  device_ = &program_->devices[static_cast<std::size_t>(device)];
  allocations_->peak = 0;
  place_slots();
  plans_.assign(program_->tasks.size(), {});
  frames_.clear();
  frame_by_key_.clear();
  frame_of_.assign(device_->instructions.size(), -1);
  for (const Instruction& instruction : device_->instructions)
    if (instruction.opcode == Opcode::run) bind_instruction(instruction);
}

void TorchExecutor::place_slots() {
  addresses_ = state_.place(*device_);
  if (step_.bytes() < device_->step_bytes) step_ = Arena(), step_ = Arena(device_->step_bytes);
  if (scratch_.bytes() < device_->scratch_bytes) scratch_ = Arena(), scratch_ = Arena(device_->scratch_bytes);
  if (host_.bytes() < device_->host_bytes) host_ = Arena(), host_ = Arena(device_->host_bytes);
  for (std::size_t i = 0; i < device_->slots.size(); ++i) {
    const Slot& slot = device_->slots[i];
    if (!holds_state(slot.kind)) addresses_[i] = (slot.kind == SlotClass::host ? host_ : step_).data() + slot.offset;
  }
}

// Runs of one task on the same memory share a frame: slots are reused, so that there are few.
std::vector<std::int64_t> TorchExecutor::frame_key(const Instruction& instruction) const {
  std::vector<std::int64_t> key{instruction.task.value};
  for (SlotId slot : device_->operands_of(instruction)) key.push_back(reinterpret_cast<std::int64_t>(addresses_[slot.index()]));
  for (const Result& result : device_->results_of(instruction)) {
    key.push_back(reinterpret_cast<std::int64_t>(addresses_[result.slot.index()]));
    key.push_back(static_cast<std::int64_t>(result.mode));
  }
  return key;
}

void TorchExecutor::bind_instruction(const Instruction& instruction) {
  const auto index = static_cast<std::size_t>(&instruction - device_->instructions.data());
  auto [entry, fresh] = frame_by_key_.try_emplace(frame_key(instruction), static_cast<std::int32_t>(frames_.size()));
  if (fresh) frames_.push_back(bind_run(instruction));
  frame_of_[index] = entry->second;
}

void TorchExecutor::append_parts(SlotId id, std::vector<at::Tensor>& out) const {
  const Slot& slot = device_->slots[id.index()];
  for (std::size_t part = 0; part < slot.parts.size(); ++part)
    out.push_back(tensor_at(addresses_[id.index()] + part_offset(slot, part), slot.parts[part]));
}

TorchExecutor::Frame TorchExecutor::bind_run(const Instruction& instruction) {
  const Task& task = program_->tasks[instruction.task.index()];
  ScratchPlan& plan = plans_[instruction.task.index()];
  if (plan.offsets.empty()) plan = plan_scratch(task.graph);
  invariant(plan.bytes <= scratch_.bytes(), "a task needs more scratch than its program planned");
  std::vector<at::Tensor> operands;
  std::vector<BoundResult> results;
  for (SlotId slot : device_->operands_of(instruction)) append_parts(slot, operands);
  for (const Result& result : device_->results_of(instruction)) {
    std::vector<at::Tensor> parts;
    append_parts(result.slot, parts);
    for (at::Tensor& part : parts) results.push_back({std::move(part), result.mode});
  }
  invariant(operands.size() == task.graph.inputs.size(), "a run's operands do not match its task");
  invariant(results.size() == task.graph.outputs.size(), "a run's results do not match its task");
  std::vector<BoundCall> calls = bind_task(task, plan, operands, results, scratch_.data(), spare_);
  return {instruction.task, std::move(calls), spare_.taken()};
}

void TorchExecutor::copy(const Instruction& instruction) {
  const SlotId from = device_->operands_of(instruction)[0], to = device_->results_of(instruction)[0].slot;
  std::memcpy(addresses_[to.index()], addresses_[from.index()], static_cast<std::size_t>(slot_bytes(device_->slots[from.index()])));
}

void TorchExecutor::run(const Frame& frame) const {
  const BoundCall* call = frame.calls.data();
  const BoundCall* end = call + frame.calls.size();
  try {
    for (; call != end; ++call) call->run();
  } catch (const c10::Error& error) {
    const Task& task = program_->tasks[frame.task.index()];
    const std::string op = call->op < 0 ? "copy" : task.graph.ops[static_cast<std::size_t>(call->op)].name;
    throw Error(concat("op ", quote(op), " of task ", task.name, ": ", error.what_without_backtrace()));
  }
}

Event TorchExecutor::write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, address(slot).subspan(offset).begin());
  return kNoEvent;
}

Event TorchExecutor::read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) {
  std::ranges::copy(address(slot).subspan(offset, bytes.size()), bytes.begin());
  return kNoEvent;
}

Event TorchExecutor::issue(const Instruction& instruction) {
  if (instruction.opcode == Opcode::copy || is_host_copy(instruction.opcode)) {  // here the device's memory is the host's
    copy(instruction);
    return kNoEvent;
  }
  const auto index = static_cast<std::size_t>(&instruction - device_->instructions.data());
  invariant(index < frame_of_.size() && frame_of_[index] >= 0, "an instruction that is not of the loaded program");
  // No tensor here asks for gradients, so that the dispatcher can skip autograd altogether.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  allocations_->run_peak = 0;
  c10::DebugInfoGuard count(c10::DebugInfoKind::PROFILER_STATE, allocations_);
  const Frame& frame = frames_[static_cast<std::size_t>(frame_of_[index])];
  last_spare_ = frame.spare;
  run(frame);
  return kNoEvent;
}

}  // namespace

std::string libtorch_version() {
  return TORCH_VERSION;
}

std::unique_ptr<Executor> make_torch_executor(int threads) {
  return std::make_unique<TorchExecutor>(threads);
}

ExecutorFactory torch_executor_factory(int threads) {
  return [threads](int) { return make_torch_executor(threads); };
}

}  // namespace penstock
