// SPDX-License-Identifier: Apache-2.0
#include "torch/executor.h"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <torch/version.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "program/snapshot_name.h"
#include "torch/allocation_count.h"
#include "torch/bind.h"
#include "torch/device.h"
#include "torch/faults.h"
#include "torch/state_store.h"
#include "torch/stream_lanes.h"

namespace penstock {
namespace {

class TorchExecutor final : public Executor {
 public:
  TorchExecutor(int threads, c10::Device device, bool host_waits, std::shared_ptr<KernelCompiler> compiler)
      : on_(device),
        host_waits_(host_waits),
        compiler_(std::move(compiler)),
        faults_(device.is_cpu() ? nullptr : std::make_unique<Faults>(device)),
        state_(device),
        snapshots_(device, StateStore::Holds::snapshots),
        spare_(device, faults_.get(), compiler_.get()) {
    at::set_num_threads(threads);
    if (device.is_cpu()) return;
    lanes_.emplace(device);
    on_device_.emplace(device);
  }

  void load(std::shared_ptr<const Program> program, int device) override;
  std::span<std::byte> address(SlotId slot) override {
    return {addresses_[slot.index()], static_cast<std::size_t>(slot_bytes(device_->slots[slot.index()]))};
  }
  std::shared_ptr<std::byte[]> host_memory(std::size_t bytes) override {
    const auto memory = std::make_shared<Arena>(Arena::beside(static_cast<std::int64_t>(bytes), on_));
    return {memory, memory->data()};
  }
  SharedTensor state(const std::string& name) const override {
    return parse_snapshot_name(name) ? snapshots_.share(name) : state_.share(name);
  }
  void forget(const std::vector<std::string>& names) override {
    state_.forget(names);
    snapshots_.forget(names);
  }
  Event write(SlotId slot, std::size_t offset, std::span<const std::byte> bytes) override;
  Event read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) override;
  Event issue(const Instruction& instruction) override;
  DeviceLanes* lanes() const override { return lanes_ ? const_cast<StreamLanes*>(&*lanes_) : nullptr; }
  bool asynchronous() const override { return lanes_ && !host_waits_; }
  std::uint64_t placement() const override { return state_.placed() + snapshots_.placed() + arenas_; }
  void end_step() override {
    if (faults_ && faults_->has_checks()) on_lane(DeviceLane::compute, [this] { return faults_->tell(), true; });
  }
  void check_step() const override {
    if (faults_) faults_->check();
  }
  bool done(Event event) override { return !lanes_ || lanes_->done(event); }
  bool wait(Event event, Deadline deadline) override { return !lanes_ || lanes_->wait(event, deadline); }
  std::int64_t extra_bytes() const override { return spare_.bytes() + (on_device_ ? on_device_->peak() : on_host_->peak); }
  std::int64_t last_run_bytes() const override { return last_spare_ + (on_device_ ? on_device_->run_peak() : on_host_->run_peak); }

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
  static std::int64_t growth(const Arena& arena, std::int64_t bytes);
  template <class Make>
  void grow(Arena& arena, std::int64_t bytes, const Make& make);
  void drop_frames();
  void bind_instruction(const Instruction& instruction);
  Frame bind_run(const Instruction& instruction);
  std::vector<std::int64_t> frame_key(const Instruction& instruction);
  void append_addresses(SlotId slot);
  void copy(const Instruction& instruction);
  void run(const Instruction& instruction);
  Memory memory_of(SlotId slot, std::size_t offset = 0) const {
    return {addresses_[slot.index()] + offset, is_on_host(device_->slots[slot.index()].kind) ? c10::Device(c10::DeviceType::CPU) : on_};
  }
  // Calls `work` where its device works: on the host, which is done then and makes no function object, or on the lane's stream.
  template <class Work>
  Event on_lane(DeviceLane lane, const Work& work) {
    if (lanes_) return lanes_->enqueue(lane, work);
    work();
    return kNoEvent;
  }
  void append_parts(SlotId slot, std::vector<at::Tensor>& out) const;

  const c10::Device on_;
  const bool host_waits_;
  const std::shared_ptr<KernelCompiler> compiler_;  // null: chains of ops are bound op by op
  std::optional<StreamLanes> lanes_;
  const std::unique_ptr<Faults> faults_;  // null: of the host
  std::shared_ptr<const Program> program_;
  const DeviceProgram* device_ = nullptr;
  StateStore state_, snapshots_;
  Arena step_, scratch_, host_;
  std::uint64_t arenas_ = 0;  // how many of them there have been
  Spare spare_;
  std::int64_t last_spare_ = 0;        // of the last run
  std::vector<std::byte*> addresses_;  // by SlotId
  std::map<std::vector<std::int64_t>, Frame> frames_;
  std::vector<BoundRun> runs_;             // by instruction
  std::vector<std::byte*> end_addresses_;  // of all runs
  std::vector<std::int64_t> seen_;         // by SlotId, while a key is made: its number among the run's slots; -1: none
  const std::shared_ptr<HostAllocations> on_host_ = std::make_shared<HostAllocations>();
  std::optional<DeviceAllocations> on_device_;  // none: of the host
};

void TorchExecutor::load(std::shared_ptr<const Program> program, int device) {
  at::NoGradGuard no_grad;
  program_ = std::move(program);
  device_ = &program_->devices[static_cast<std::size_t>(device)];
  on_host_->peak = 0;
  if (on_device_) on_device_->begin_program();
  check_free(state_.bytes_to_place(*device_) + growth(step_, device_->step_bytes) + growth(scratch_, device_->scratch_bytes), on_);
  place_slots();
  drop_frames();
  end_addresses_.clear();
  seen_.assign(device_->slots.size(), -1);
  runs_.assign(device_->instructions.size(), {});
  for (const Instruction& instruction : device_->instructions)
    if (instruction.opcode == Opcode::run) bind_instruction(instruction);
  synchronise(on_);  // what was bound may have made constants there, which kernels read on other streams
}

// Returns the bytes that grow() takes beyond those it gives back.
std::int64_t TorchExecutor::growth(const Arena& arena, std::int64_t bytes) {
  return std::max<std::int64_t>(bytes - arena.bytes(), 0);
}

// The old one goes first, so that there is memory for the new one.
template <class Make>
void TorchExecutor::grow(Arena& arena, std::int64_t bytes, const Make& make) {
  if (arena.bytes() >= bytes) return;
  arena = Arena();
  arena = make(bytes);
  ++arenas_;
}

void TorchExecutor::place_slots() {
  addresses_.assign(device_->slots.size(), nullptr);
  state_.place(*device_, addresses_);
  snapshots_.place(*device_, addresses_);
  if (scratch_.bytes() < device_->scratch_bytes) frames_.clear();  // they are bound to it
  const auto on_device = [this](std::int64_t bytes) { return Arena(bytes, on_); };
  grow(step_, device_->step_bytes, on_device);
  grow(scratch_, device_->scratch_bytes, on_device);
  grow(host_, device_->host_bytes, [this](std::int64_t bytes) { return Arena::beside(bytes, on_); });
  for (std::size_t i = 0; i < device_->slots.size(); ++i) {
    const Slot& slot = device_->slots[i];
    if (!outlives_steps(slot.kind)) addresses_[i] = (slot.kind == SlotClass::host ? host_ : step_).data() + slot.offset;
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
    out.push_back(tensor_at(addresses_[id.index()] + part_offset(slot, part), slot.parts[part], on_));
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
  copy_bytes(memory_of(to), memory_of(from), static_cast<std::size_t>(slot_bytes(device_->slots[from.index()])));
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
  return on_lane(DeviceLane::compute, [to = memory_of(slot, offset), bytes] {
    return copy_bytes(to, {const_cast<std::byte*>(bytes.data()), c10::DeviceType::CPU}, bytes.size()), true;
  });
}

Event TorchExecutor::read(SlotId slot, std::size_t offset, std::span<std::byte> bytes) {
  return on_lane(DeviceLane::compute, [from = memory_of(slot, offset), bytes] {
    return copy_bytes({bytes.data(), c10::DeviceType::CPU}, from, bytes.size()), true;
  });
}

Event TorchExecutor::issue(const Instruction& instruction) {
  const bool copies = instruction.opcode == Opcode::copy || is_host_copy(instruction.opcode);
  return on_lane(is_host_copy(instruction.opcode) ? DeviceLane::host_copy : DeviceLane::compute, [&] {
    copies ? copy(instruction) : run(instruction);
    return true;
  });
}

void TorchExecutor::run(const Instruction& instruction) {
  const auto index = static_cast<std::size_t>(&instruction - device_->instructions.data());
  invariant(index < runs_.size() && runs_[index].frame, "an instruction that is not of the loaded program");
  // No tensor here asks for gradients, so that the dispatcher can skip autograd altogether.
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  on_host_->run_peak = 0;
  std::optional<c10::DebugInfoGuard> count;
  if (!on_device_)
    count.emplace(c10::DebugInfoKind::PROFILER_STATE, on_host_);
  else if (host_waits_)
    on_device_->begin_run();
  const Frame& frame = *runs_[index].frame;
  for (std::size_t i = 0; i < frame.ends.size(); ++i) move_tensor(frame.ends[i], end_addresses_[runs_[index].first + i]);
  last_spare_ = frame.spare;
  run(frame, instruction);
}

}  // namespace

std::string libtorch_version() {
  return TORCH_VERSION;
}

std::unique_ptr<Executor> make_torch_executor(int threads, c10::Device device, bool host_waits, std::shared_ptr<KernelCompiler> compiler) {
  return std::make_unique<TorchExecutor>(threads, device, host_waits, std::move(compiler));
}

ExecutorFactory torch_executor_factory(int threads, c10::Device device, bool host_waits, bool fuses) {
  const auto compiler = fuses ? std::make_shared<KernelCompiler>(device) : nullptr;
  return [=](int) { return make_torch_executor(threads, device, host_waits, compiler); };
}

}  // namespace penstock
