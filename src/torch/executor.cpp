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
  SharedTensor state(const std::string& name) const override { return state_.share(name); }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override;
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override;
  Event issue(const Instruction& instruction) override;
  bool done(Event) override { return true; }
  bool wait(Event, Deadline) override { return true; }
  std::int64_t extra_bytes() const override { return spare_.bytes() + allocations_->peak; }
  std::int64_t last_run_bytes() const override { return last_spare_ + allocations_->run_peak; }

 private:
  // A bound task. All runs of tasks of this graph share it whose slots are equal to each other in the same places and written in the same
  // way, whatever their addresses and programs; it is moved to a run's addresses before that.
  struct Frame {
    std::weak_ptr<const Graph> graph;
    std::vector<at::Tensor> ends;  // the parts of its operands, then of its results
    std::vector<BoundCall> calls;
    std::int64_t spare = 0;  // bytes of spare_ that they use
  };
  struct BoundRun {
    Frame* frame = nullptr;  // null: no run
    std::size_t first = 0;   // in end_addresses_: where the frame's ends lie
  };
  void run(const Frame& frame, const Instruction& instruction) const;
  void place_slots();
  void drop_frames();
  void bind_instruction(const Instruction& instruction);
  Frame bind_run(const Instruction& instruction);
  std::vector<std::int64_t> frame_key(const Instruction& instruction);
  void append_addresses(SlotId slot);
  void copy(const Instruction& instruction);
  void append_parts(SlotId slot, std::vector<at::Tensor>& out) const;

  std::shared_ptr<const Program> program_;
  const DeviceProgram* device_ = nullptr;
  StateStore state_;
  Arena step_, scratch_, host_;
  Spare spare_;
  std::int64_t last_spare_ = 0;        // of the last run
  std::vector<std::byte*> addresses_;  // by SlotId
  std::map<std::vector<std::int64_t>, Frame> frames_;
  std::vector<BoundRun> runs_;             // by instruction
  std::vector<std::byte*> end_addresses_;  // of all runs
  std::vector<std::int64_t> seen_;         // by SlotId, while a key is made: its number among the run's slots; -1: none
  std::shared_ptr<AllocationCount> allocations_ = std::make_shared<AllocationCount>();
};

void TorchExecutor::load(std::shared_ptr<const Program> program, int device) {
  at::NoGradGuard no_grad;
  program_ = std::move(program);
  device_ = &program_->devices[static_cast<std::size_t>(device)];
  allocations_->peak = 0;
  place_slots();
  drop_frames();
  end_addresses_.clear();
  seen_.assign(device_->slots.size(), -1);
  runs_.assign(device_->instructions.size(), {});
  for (const Instruction& instruction : device_->instructions)
    if (instruction.opcode == Opcode::run) bind_instruction(instruction);
}

void TorchExecutor::place_slots() {
  addresses_ = state_.place(*device_);
  if (step_.bytes() < device_->step_bytes) step_ = Arena(), step_ = Arena(device_->step_bytes);
  if (scratch_.bytes() < device_->scratch_bytes) {
    frames_.clear();  // they are bound to it
    scratch_ = Arena(), scratch_ = Arena(device_->scratch_bytes);
  }
  if (host_.bytes() < device_->host_bytes) host_ = Arena(), host_ = Arena(device_->host_bytes);
  for (std::size_t i = 0; i < device_->slots.size(); ++i) {
    const Slot& slot = device_->slots[i];
    if (!holds_state(slot.kind)) addresses_[i] = (slot.kind == SlotClass::host ? host_ : step_).data() + slot.offset;
  }
}

// Drops what is bound of tasks that no program and nobody who makes programs has any more.
void TorchExecutor::drop_frames() {
  std::erase_if(frames_, [](const auto& frame) { return frame.second.graph.expired(); });
}

// The graph, and of each slot its number among the run's, how many parts it has and how it is written.
std::vector<std::int64_t> TorchExecutor::frame_key(const Instruction& instruction) {
  std::vector<std::int64_t> key{reinterpret_cast<std::int64_t>(&*program_->tasks[instruction.task.index()].graph)};
  std::int64_t slots = 0;
  const auto add = [&](SlotId slot, std::int64_t mode) {
    std::int64_t& number = seen_[slot.index()];
    if (number < 0) number = slots++;
    key.insert(key.end(), {number, std::ssize(device_->slots[slot.index()].parts), mode});
  };
  for (SlotId slot : device_->operands_of(instruction)) add(slot, -1);
  for (const Result& result : device_->results_of(instruction)) add(result.slot, static_cast<std::int64_t>(result.mode));
  for (SlotId slot : device_->operands_of(instruction)) seen_[slot.index()] = -1;
  for (const Result& result : device_->results_of(instruction)) seen_[result.slot.index()] = -1;
  return key;
}

void TorchExecutor::bind_instruction(const Instruction& instruction) {
  BoundRun& run = runs_[static_cast<std::size_t>(&instruction - device_->instructions.data())];
  const std::vector<std::int64_t> key = frame_key(instruction);
  auto entry = frames_.find(key);
  if (entry == frames_.end()) entry = frames_.emplace(key, bind_run(instruction)).first;
  run = {&entry->second, end_addresses_.size()};
  for (SlotId slot : device_->operands_of(instruction)) append_addresses(slot);
  for (const Result& result : device_->results_of(instruction)) append_addresses(result.slot);
}

void TorchExecutor::append_addresses(SlotId id) {
  const Slot& slot = device_->slots[id.index()];
  for (std::size_t part = 0; part < slot.parts.size(); ++part) end_addresses_.push_back(addresses_[id.index()] + part_offset(slot, part));
}

void TorchExecutor::append_parts(SlotId id, std::vector<at::Tensor>& out) const {
  const Slot& slot = device_->slots[id.index()];
  for (std::size_t part = 0; part < slot.parts.size(); ++part)
    out.push_back(tensor_at(addresses_[id.index()] + part_offset(slot, part), slot.parts[part]));
}

TorchExecutor::Frame TorchExecutor::bind_run(const Instruction& instruction) {
  const Task& task = program_->tasks[instruction.task.index()];
  const ScratchPlan& plan = plan_scratch(task.graph);
  invariant(plan.bytes <= scratch_.bytes(), "a task needs more scratch than its program planned");
  std::vector<at::Tensor> operands;
  std::vector<BoundResult> results;
  for (SlotId slot : device_->operands_of(instruction)) append_parts(slot, operands);
  for (const Result& result : device_->results_of(instruction)) {
    std::vector<at::Tensor> parts;
    append_parts(result.slot, parts);
    for (at::Tensor& part : parts) results.push_back({std::move(part), result.mode});
  }
  invariant(operands.size() == task.graph->inputs.size(), "a run's operands do not match its task");
  invariant(results.size() == task.graph->outputs.size(), "a run's results do not match its task");
  std::vector<BoundCall> calls =
      bind_task(task, plan, operands, results, {scratch_.data(), static_cast<std::size_t>(scratch_.bytes())}, spare_);
  for (BoundResult& result : results) operands.push_back(std::move(result.memory));
  return {task.graph.shared(), std::move(operands), std::move(calls), spare_.taken()};
}

void TorchExecutor::copy(const Instruction& instruction) {
  const SlotId from = device_->operands_of(instruction)[0], to = device_->results_of(instruction)[0].slot;
  std::memcpy(addresses_[to.index()], addresses_[from.index()], static_cast<std::size_t>(slot_bytes(device_->slots[from.index()])));
}

void TorchExecutor::run(const Frame& frame, const Instruction& instruction) const {
  const BoundCall* call = frame.calls.data();
  const BoundCall* end = call + frame.calls.size();
  try {
    for (; call != end; ++call) call->run();
  } catch (const c10::Error& error) {
    const Task& task = program_->tasks[instruction.task.index()];
    const std::string op = call->op < 0 ? "copy" : task.graph->ops[static_cast<std::size_t>(call->op)].name;
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
  invariant(index < runs_.size() && runs_[index].frame, "an instruction that is not of the loaded program");
  // No tensor here asks for gradients, so that the dispatcher can skip autograd altogether.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  allocations_->run_peak = 0;
  c10::DebugInfoGuard count(c10::DebugInfoKind::PROFILER_STATE, allocations_);
  const Frame& frame = *runs_[index].frame;
  for (std::size_t i = 0; i < frame.ends.size(); ++i) move_tensor(frame.ends[i], end_addresses_[runs_[index].first + i]);
  last_spare_ = frame.spare;
  run(frame, instruction);
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
