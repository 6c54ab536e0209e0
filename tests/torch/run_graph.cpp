// SPDX-License-Identifier: Apache-2.0
#include "torch/run_graph.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>

#include "ops/verify.h"
#include "penstock/graph.h"
#include "program/memory_plan.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/kernel.h"

namespace penstock::test {
namespace {

SlotId add_slot(DeviceProgram& device, const std::string& name, const TensorType& type) {
  Slot slot;
  slot.name = name;
  slot.parts = {type};
  device.slots.push_back(slot);
  return SlotId(static_cast<std::int64_t>(device.slots.size()) - 1);
}

Instruction on_slot(Opcode opcode, SlotId slot) {
  Instruction instruction;
  instruction.opcode = opcode;
  instruction.slot = slot;
  return instruction;
}

}  // namespace

GraphRunner::GraphRunner(Graph graph, std::vector<ResultMode> modes, c10::Device on, std::shared_ptr<KernelCompiler> compiler)
    : on_(on), program_(std::make_shared<Program>()) {
  verify(graph);
  modes.resize(graph.outputs.size(), ResultMode::store);
  program_->devices.emplace_back();
  DeviceProgram& device = program_->devices[0];
  Instruction run;
  run.task = TaskId(0);
  for (ValueId value : graph.inputs) {
    device.operands.push_back(add_slot(device, "in" + std::to_string(device.slots.size()), graph.type(value)));
    device.instructions.push_back(on_slot(Opcode::input, device.operands.back()));
  }
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) {
    const SlotId slot = add_slot(device, "out" + std::to_string(i), graph.type(graph.outputs[i]));
    device.results.push_back({slot, modes[i]});
    if (modes[i] != ResultMode::store) device.instructions.push_back(on_slot(Opcode::input, slot));
  }
  run.operands = static_cast<std::uint32_t>(device.operands.size());
  run.results = static_cast<std::uint32_t>(device.results.size());
  run_ = device.instructions.size();
  device.instructions.push_back(run);
  Task task;
  task.name = "task";
  task.graph = std::move(graph);
  program_->tasks.push_back(std::move(task));
  plan_memory(*program_);
  executor_ = make_torch_executor(1, on_, false, std::move(compiler));
  bind_elsewhere();
  executor_->load(program_, 0);
}

// A task is bound where the first program that has it puts it, and moved for the others. Here another program is the first, whose memory
// holds nothing that anybody may read.
void GraphRunner::bind_elsewhere() {
  constexpr std::int64_t kShift = 64 * kAlignment;
  Program elsewhere = *program_;
  for (Slot& slot : elsewhere.devices[0].slots) slot.offset += kShift;
  elsewhere.devices[0].step_bytes += kShift;
  executor_->load(std::make_shared<const Program>(elsewhere), 0);
  for (const SlotId slot : elsewhere.devices[0].slots.ids()) {
    const std::span<std::byte> memory = executor_->address(slot);
    at::from_blob(memory.data(), {std::ssize(memory)}, at::TensorOptions(at::kByte).device(on_)).fill_(0xff);
  }
}

at::Tensor GraphRunner::slot(SlotId id) {
  return tensor_at(executor_->address(id).data(), device().slots[id.index()].parts[0], on_);
}
at::Tensor GraphRunner::input(std::size_t i) {
  return slot(device().operands[i]);
}
at::Tensor GraphRunner::output(std::size_t i) {
  return slot(device().results[i].slot);
}
void GraphRunner::run() {
  synchronise(on_);  // what the test has put into the inputs
  executor_->issue(device().instructions[run_]);
  executor_->end_step();
  if (DeviceLanes* const lanes = executor_->lanes())
    executor_->wait(lanes->record(DeviceLane::compute), std::chrono::steady_clock::now() + std::chrono::minutes(1));
  executor_->check_step();
}

std::vector<at::Tensor> run_graph(const Graph& graph, const std::vector<at::Tensor>& inputs, c10::Device device,
                                  std::shared_ptr<KernelCompiler> compiler) {
  GraphRunner runner(graph, {}, device, std::move(compiler));
  for (std::size_t i = 0; i < inputs.size(); ++i) runner.input(i).copy_(inputs[i]);
  runner.run();
  std::vector<at::Tensor> out;
  for (std::size_t i = 0; i < graph.outputs.size(); ++i) out.push_back(runner.output(i).to(at::kCPU, false, true));
  return out;
}

std::vector<at::Tensor> run_graph(std::string_view text, const std::vector<at::Tensor>& inputs) {
  return run_graph(parse_graph(text), inputs);
}

at::Tensor random_tensor(std::mt19937_64& random, const TensorType& type, double low, double high, double gap) {
  at::Tensor wide = at::empty(type.shape, at::TensorOptions(at::kDouble));
  auto* data = static_cast<double*>(wide.data_ptr());
  std::uniform_real_distribution<double> real(low, high);
  for (std::int64_t i = 0; i < wide.numel(); ++i) {
    double x = real(random);
    while (std::abs(x) < gap) x = real(random);
    data[i] = is_floating(type.dtype) ? x : std::floor(x);
  }
  return wide.to(scalar_type(type.dtype));
}

double relative_difference(const at::Tensor& a, const at::Tensor& b, double floor) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (b.numel() == 0) return 0;
  // Equal infinities (the logsumexp of a query without keys) differ by nothing, and are no scale.
  const at::Tensor alike = a.to(at::kDouble).eq(b.to(at::kDouble)).logical_and(b.isinf());
  const at::Tensor x = a.to(at::kDouble).masked_fill(alike, 0), y = b.to(at::kDouble).masked_fill(alike, 0);
  const double difference = (x.sub(y)).abs().max().item().toDouble();
  return difference / std::max(y.abs().max().item().toDouble(), floor);
}

}  // namespace penstock::test
