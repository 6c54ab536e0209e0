// SPDX-License-Identifier: Apache-2.0
// Random tasks on shared memory, with views, results added to what is there and states written over in place, give what their ops give one
// by one, each in memory of its own: also on a device where chains of them are one kernel each.
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/text.h"
#include "ops/builder.h"
#include "program/memory_plan.h"
#include "program/verify.h"
#include "torch/device.h"
#include "torch/executor.h"
#include "torch/kernel.h"
#include "torch/run_graph.h"

namespace penstock {
namespace {

using Tensors = std::vector<at::Tensor>;

class Maker {
 public:
  Maker(std::uint64_t seed, DType dtype) : random_(seed), dtype_(dtype) {
    program_.name = "tasks";
    program_.devices.emplace_back();
    for (const Shape& shape : {Shape{4, 6}, Shape{6, 4}, Shape{4, 6}, Shape{24}, Shape{5, 5}}) {
      live_.push_back(add_slot(SlotClass::state, {shape}));
      closed_.insert(live_.back());
    }
  }

  Program make(int runs) {
    for (int r = 0; r < runs; ++r) {
      run(r);
      for (std::size_t i = live_.size(); i-- > 0;)
        if (device().slots[live_[i].index()].kind == SlotClass::step && (r + 1 == runs || coin(0.4))) free(i);
    }
    plan_memory(program_);
    verify(program_);
    return std::move(program_);
  }

 private:
  std::size_t below(std::size_t count) { return std::uniform_int_distribution<std::size_t>(0, count - 1)(random_); }
  bool coin(double probability) { return std::bernoulli_distribution(probability)(random_); }
  DeviceProgram& device() { return program_.devices[0]; }

  SlotId add_slot(SlotClass kind, const std::vector<Shape>& shapes) {
    Slot slot;
    slot.name = concat("s", device().slots.size());
    slot.kind = kind;
    for (const Shape& shape : shapes) slot.parts.push_back({dtype_, shape});
    if (kind == SlotClass::state) slot.names = {slot.name};
    device().slots.push_back(std::move(slot));
    return SlotId(static_cast<std::int64_t>(device().slots.size()) - 1);
  }

  void free(std::size_t index) {
    Instruction i;
    i.opcode = Opcode::free;
    i.slot = live_[index];
    device().instructions.push_back(i);
    live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void run(int number) {
    Builder builder(concat("t", number));
    values_.clear();
    Instruction i;
    i.task = TaskId(number);
    i.first_operand = static_cast<std::uint32_t>(device().operands.size());
    i.first_result = static_cast<std::uint32_t>(device().results.size());
    std::vector<SlotId> slots = live_;
    std::ranges::shuffle(slots, random_);
    slots.resize(1 + below(std::min<std::size_t>(slots.size(), 4)));
    for (const SlotId slot : slots)
      for (const TensorType& part : device().slots[slot.index()].parts) {
        const ValueId input = builder.graph.add_input(part, concat("x", builder.graph.inputs.size()));
        values_.emplace_back(&builder, input.value);
      }
    for (std::size_t count = 3 + below(10); count > 0; --count) add_op();
    device().operands.insert(device().operands.end(), slots.begin(), slots.end());
    i.operands = static_cast<std::uint32_t>(slots.size());
    add_results(builder, slots);
    i.results = static_cast<std::uint32_t>(device().results.size()) - i.first_result;
    program_.tasks.push_back({builder.graph.name, std::move(builder.graph), 0});
    device().instructions.push_back(i);
  }

  Tensor any() { return values_[below(values_.size())]; }
  // Another value of this shape, or the value itself.
  Tensor alike(const Shape& shape) {
    std::vector<Tensor> found;
    std::ranges::copy_if(values_, std::back_inserter(found), [&](const Tensor& v) { return v.shape() == shape; });
    return found[below(found.size())];
  }

  void add_op() {
    const Tensor x = any();
    const Shape shape = x.shape();
    const int rank = static_cast<int>(shape.size());
    if (rank == 0) return;
    const auto dim = below(shape.size());
    const int d = static_cast<int>(dim);
    const auto keep = [&](const Tensor& made) { values_.push_back(made); };
    switch (below(16)) {
      case 0:
        return keep(reshape(x, {-1}));
      case 1: {
        Shape turned(shape.rbegin(), shape.rend());
        return keep(reshape(x, turned));
      }
      case 2:
        return keep(shape[dim] % 2 == 0 ? reshape(x, with_halves(shape, dim)) : unsqueeze(x, d));
      case 3:
      case 4:
        return keep(transpose(x, d, rank - 1 - d));
      case 5:
      case 6:
        return keep(slice(x, d, static_cast<std::int64_t>(below(static_cast<std::size_t>(shape[dim]))), shape[dim], coin(0.3) ? 2 : 1));
      case 7:
        return keep(select(x, d, 0));
      case 8: {
        for (const Tensor& part : split(x, (shape[dim] + 1) / 2, d)) keep(part);
        return;
      }
      case 9:
        return keep(add(x, alike(shape)));
      case 10:
        return keep(add_n({x, alike(shape), alike(shape)}));
      case 11:
        return keep(rank == 2 ? mul(mm(x, transpose(alike(shape), 0, 1)), 0.1) : tanh(x));
      case 12:
        return keep(softmax(x, d));
      case 13:
      case 14: {  // products that only copies read, but where a part is taken for something else
        if (rank != 2) return;
        std::vector<Tensor> parts;
        for (int p = 0; p < 2; ++p) {
          const Tensor product = transpose(mm(transpose(x * 0.1, 0, 1), alike(shape)), 0, 1);
          parts.push_back(coin(0.5) ? product : transpose(reshape(reshape(product, {-1}), product.shape()), 0, 1));
          if (coin(0.1)) keep(product);
        }
        return keep(cat(parts, d));
      }
      default:
        return keep(coin(0.5) ? gelu(x) : sub(x, tanh(alike(shape))));
    }
  }

  static Shape with_halves(Shape shape, std::size_t dim) {
    shape[dim] /= 2;
    shape.insert(shape.begin() + static_cast<std::ptrdiff_t>(dim), 2);
    return shape;
  }

  // A value of this shape, if need be by looking at another one differently.
  std::optional<Tensor> value_of(const Shape& shape) {
    const std::int64_t elements = TensorType{DType::f64, shape}.elements();
    for (int attempt = 0; attempt < 20; ++attempt) {
      const Tensor x = any();
      if (x.shape() == shape) return x;
      if (x.type().elements() == elements && coin(0.3)) return reshape(x, shape);
    }
    return std::nullopt;
  }

  void add_results(Builder& builder, const std::vector<SlotId>& operands) {
    const auto give = [&](SlotId slot, ResultMode mode, const std::vector<Tensor>& values) {
      for (const Tensor& value : values) builder.graph.outputs.emplace_back(value.value());
      device().results.push_back({slot, mode});
    };
    closed_.insert(operands.begin(), operands.end());
    std::vector<SlotId> targets = live_;
    std::ranges::shuffle(targets, random_);
    targets.resize(below(std::min<std::size_t>(targets.size(), 4) + 1));
    for (const SlotId target : targets) {
      const bool adds = !closed_.contains(target) && coin(0.7);
      std::vector<Tensor> values;
      for (const TensorType& part : device().slots[target.index()].parts)
        if (const auto value = value_of(part.shape)) values.push_back(*value);
      if (values.size() != device().slots[target.index()].parts.size()) continue;
      give(target, adds ? ResultMode::add : ResultMode::update, values);
      if (adds)
        ++device().slots[target.index()].terms;
      else
        closed_.insert(target);
    }
    for (std::size_t count = 1 + below(2); count > 0; --count) {
      std::vector<Tensor> values;
      std::vector<Shape> shapes;
      for (std::size_t parts = 1 + below(2); parts > 0; --parts) {
        values.push_back(any());
        shapes.push_back(values.back().shape());
      }
      live_.push_back(add_slot(SlotClass::step, shapes));
      give(live_.back(), ResultMode::store, values);
    }
  }

  std::mt19937_64 random_;
  const DType dtype_;
  Program program_;
  std::vector<SlotId> live_;
  std::set<SlotId> closed_;     // states, and what was read or written over: sums that get no more terms
  std::vector<Tensor> values_;  // of the graph that is made
};

// The graph's outputs, one op after the other, each as a program of its own.
Tensors evaluate(const Graph& graph, const Tensors& inputs) {
  Tensors values(graph.values.size());
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs[i].index()] = inputs[i].clone();
  for (const Op& op : graph.ops) {
    Graph alone;
    alone.name = "alone";
    Op copy = op;
    Tensors operands;
    for (ValueId& operand : copy.operands) {
      operands.push_back(values[operand.index()]);
      operand = alone.add_input(graph.type(operand), concat("x", alone.inputs.size()));
    }
    for (ValueId& result : copy.results) result = alone.add_value(graph.type(result));
    alone.outputs = copy.results;
    alone.ops.push_back(std::move(copy));
    const Tensors results = test::run_graph(alone, operands);
    for (std::size_t r = 0; r < results.size(); ++r) values[op.results[r].index()] = results[r];
  }
  Tensors outputs;
  for (const ValueId output : graph.outputs) outputs.push_back(values[output.index()]);
  return outputs;
}

// The parts of every slot, in memory of their own.
class Plain {
 public:
  explicit Plain(const Program& program) : program_(program), slots_(program.devices[0].slots.size()) {}

  void run(const Instruction& i) {
    const DeviceProgram& device = program_.devices[0];
    Tensors inputs;
    for (const SlotId operand : device.operands_of(i))
      inputs.insert(inputs.end(), slots_[operand.index()].begin(), slots_[operand.index()].end());
    const Tensors outputs = evaluate(program_.tasks[i.task.index()].graph, inputs);
    auto next = outputs.begin();
    for (const Result& result : device.results_of(i)) {
      Tensors& slot = slots_[result.slot.index()];
      slot.resize(device.slots[result.slot.index()].parts.size());
      for (at::Tensor& part : slot) {
        part = result.mode == ResultMode::add ? part.add(*next) : next->clone();
        ++next;
      }
    }
  }

  std::vector<Tensors>& slots() { return slots_; }  // none: the slot is not live

 private:
  const Program& program_;
  std::vector<Tensors> slots_;
};

Tensors parts_of(Executor& executor, const Program& program, std::size_t slot, c10::Device device) {
  const Slot& of = program.devices[0].slots[slot];
  Tensors parts;
  for (std::size_t p = 0; p < of.parts.size(); ++p)
    parts.push_back(tensor_at(executor.address(SlotId(static_cast<std::int64_t>(slot))).data() + part_offset(of, p), of.parts[p], device));
  return parts;
}

void finish(Executor& executor) {
  if (DeviceLanes* const lanes = executor.lanes())
    executor.wait(lanes->record(DeviceLane::compute), std::chrono::steady_clock::now() + std::chrono::minutes(1));
}

struct Way {
  DType dtype = DType::f64;
  double tolerance = 1e-12;
  c10::Device device = c10::DeviceType::CPU;
  std::shared_ptr<KernelCompiler> compiler = {};
};

void expect_what_ops_give(const Way& way, std::uint64_t seeds) {
  int in_place = 0, added = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto program = std::make_shared<const Program>(Maker(seed, way.dtype).make(6));
    SCOPED_TRACE(concat("seed ", seed, "\n", print(*program)));
    const DeviceProgram& device = program->devices[0];
    auto executor = make_torch_executor(1, way.device, false, way.compiler);
    executor->load(program, 0);
    Plain plain(*program);
    std::mt19937_64 random(seed);
    for (std::size_t s = 0; s < device.slots.size(); ++s)
      if (holds_state(device.slots[s].kind)) {
        plain.slots()[s] = {test::random_tensor(random, device.slots[s].parts[0])};
        parts_of(*executor, *program, s, way.device)[0].copy_(plain.slots()[s][0]);
      }
    synchronise(way.device);
    for (const Instruction& i : device.instructions) {
      if (i.opcode == Opcode::free) {
        plain.slots()[i.slot.index()].clear();
        continue;
      }
      executor->issue(i);
      finish(*executor);
      plain.run(i);
      for (const Result& result : device.results_of(i)) {
        in_place += result.mode == ResultMode::update;
        added += result.mode == ResultMode::add;
      }
      for (std::size_t s = 0; s < device.slots.size(); ++s)
        for (std::size_t p = 0; p < plain.slots()[s].size(); ++p)
          ASSERT_LE(test::relative_difference(parts_of(*executor, *program, s, way.device)[p].cpu(), plain.slots()[s][p]), way.tolerance)
              << "slot " << device.slots[s].name << ", part " << p << " after instruction " << &i - device.instructions.data();
    }
  }
  EXPECT_GE(in_place, 100 * seeds / 60);
  EXPECT_GE(added, 20 * seeds / 60);
}

TEST(RandomTasks, GiveWhatTheirOpsGive) {
  expect_what_ops_give({}, 60);
}

TEST(RandomTasks, GiveTheSameInChains) {
  const c10::Device standin = open_device("standin");
  const auto compiler = std::make_shared<KernelCompiler>(standin);
  expect_what_ops_give({DType::f32, 1e-4, standin, compiler}, 30);
  EXPECT_GE(compiler->texts().size(), 30u);
}

}  // namespace
}  // namespace penstock
