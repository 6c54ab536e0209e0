// SPDX-License-Identifier: Apache-2.0
// Measures a program's overhead: dispatch by the interpreter with a machine that does nothing, and the verifier, the memory plan and the
// text form, on the program of a 1F1B pipeline (one stage per device, one tensor per edge).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>

#include "penstock/graph.h"
#include "program/interpreter.h"
#include "program/memory_plan.h"
#include "program/verify.h"
#include "simulate/simulate.h"

namespace penstock {
namespace {

const TensorType kType{DType::f32, {64}};

Task task(const std::string& name, std::size_t inputs, std::size_t outputs) {
  std::string text = "penstock graph 1\ngraph @" + name + "(";
  for (std::size_t i = 0; i < inputs; ++i) text += (i > 0 ? ", %x" : "%x") + std::to_string(i) + ": f32[64]";
  text += outputs == 1 ? ") -> (f32[64]) {\n  return %x0\n}\n" : ") -> (f32[64], f32[64]) {\n  return %x0, %x1\n}\n";
  return {name, parse_graph(text), 0};
}

class Pipeline {
 public:
  Pipeline(int stages, int microbatches) : stages_(stages), microbatches_(microbatches) {
    program_.name = "pipeline";
    program_.microbatches = microbatches;
    program_.data.push_back({"x", {DType::f32, {64 * microbatches}}, true});
    program_.tasks = {task("F", 2, 1), task("B", 2, 2)};
    program_.devices.resize(static_cast<std::size_t>(stages));
    for (stage_ = 0; stage_ < stages; ++stage_) device();
  }
  Program take() { return std::move(program_); }

 private:
  DeviceProgram& on() { return program_.devices[static_cast<std::size_t>(stage_)]; }

  SlotId slot(const std::string& name, SlotClass kind = SlotClass::step) {
    on().slots.push_back({name, kind, {kType}, {}, -1});
    if (kind != SlotClass::step) on().slots.back().names.push_back(name + std::to_string(stage_));
    return SlotId(static_cast<std::int64_t>(on().slots.size()) - 1);
  }

  void simple(Opcode opcode, SlotId slot, int peer = -1, int tag = -1) {
    Instruction i;
    i.opcode = opcode;
    i.slot = slot;
    i.peer = peer;
    i.tag = tag;
    if (opcode == Opcode::input) i.port = 0, i.microbatch = tag;
    on().instructions.push_back(i);
  }

  void run(Kind kind, int microbatch, int which, std::initializer_list<SlotId> operands, std::initializer_list<Result> results) {
    Instruction i;
    i.kind = kind;
    i.action = true;
    i.stage = stage_;
    i.microbatch = microbatch;
    i.task = TaskId(which);
    i.first_operand = static_cast<std::uint32_t>(on().operands.size());
    i.first_result = static_cast<std::uint32_t>(on().results.size());
    i.operands = static_cast<std::uint32_t>(operands.size());
    i.results = static_cast<std::uint32_t>(results.size());
    on().operands.insert(on().operands.end(), operands);
    on().results.insert(on().results.end(), results);
    on().instructions.push_back(i);
  }

  // A device's instructions: warm-up, one forward and one backward in turn, then the rest of the backwards.
  void device() {
    weight_ = slot("w", SlotClass::state);
    gradient_ = slot("g");
    activations_.clear();
    int forwards = 0, backwards = 0;
    for (const int warm_up = std::min(stages_ - 1 - stage_, microbatches_); forwards < warm_up; ++forwards) forward(forwards);
    while (forwards < microbatches_) {
      forward(forwards++);
      backward(backwards++);
    }
    while (backwards < microbatches_) backward(backwards++);
    simple(Opcode::free, gradient_);
  }

  void forward(int m) {
    const SlotId x = slot("x" + std::to_string(m)), y = slot("y" + std::to_string(m));
    if (stage_ == 0) {
      simple(Opcode::input, x, -1, m);
    } else {
      simple(Opcode::recv, x, stage_ - 1, m);
    }
    run(Kind::F, m, 0, {weight_, x}, {{y, ResultMode::store}});
    if (stage_ + 1 < stages_) simple(Opcode::send, y, stage_ + 1, m);
    activations_.push_back({x, y});
  }

  void backward(int m) {
    const auto [x, y] = activations_[static_cast<std::size_t>(m)];
    SlotId dy = y;  // the last stage's output is its own cotangent
    if (stage_ + 1 < stages_) {
      dy = slot("dy" + std::to_string(m));
      simple(Opcode::free, y);
      simple(Opcode::recv, dy, stage_ + 1, m);
    }
    const SlotId dx = slot("dx" + std::to_string(m));
    run(Kind::B, m, 1, {x, dy}, {{dx, ResultMode::store}, {gradient_, m == 0 ? ResultMode::store : ResultMode::add}});
    simple(Opcode::free, x);
    simple(Opcode::free, dy);
    if (stage_ > 0) simple(Opcode::send, dx, stage_ - 1, m);
    simple(Opcode::free, dx);
  }

  Program program_;
  int stages_, microbatches_, stage_ = 0;
  SlotId weight_, gradient_;
  std::vector<std::pair<SlotId, SlotId>> activations_;
};

Program pipeline(int stages, int microbatches) {
  Program program = Pipeline(stages, microbatches).take();
  plan_memory(program);
  return program;
}

std::int64_t instructions(const Program& program) {
  std::int64_t count = 0;
  for (const DeviceProgram& device : program.devices) count += static_cast<std::int64_t>(device.instructions.size());
  return count;
}

// A machine on which everything is complete as soon as it is started; but the interpreter has to ask.
struct IdleMachine {
  Event next = 0;
  Event run(const Instruction&) { return ++next; }
  Event start(const Instruction&) { return ++next; }
  bool done(Event) const { return true; }
  void release(SlotId) {}
};

void Dispatch(benchmark::State& state) {
  const Program program = pipeline(4, static_cast<int>(state.range(0)));
  DeviceState device(program.devices[1]);
  IdleMachine machine;
  for (auto _ : state) {
    device.reset();
    benchmark::DoNotOptimize(advance(device, machine));
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(program.devices[1].instructions.size()));
}
BENCHMARK(Dispatch)->Arg(16)->Arg(1024);

void Verify(benchmark::State& state) {
  const Program program = pipeline(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  for (auto _ : state) verify(program);
  state.SetItemsProcessed(state.iterations() * instructions(program));
}
BENCHMARK(Verify)->Args({4, 64})->Args({64, 1024})->Unit(benchmark::kMillisecond);

// Every instruction takes a microsecond; links have lanes of their own, or copies are started in the order of time.
void Simulate(benchmark::State& state) {
  const Program program = pipeline(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  Durations durations;
  for (const DeviceProgram& device : program.devices) durations.emplace_back(device.instructions.size(), 1e-6);
  Network network;
  network.link = {.latency = 1e-5, .bandwidth = 1e9, .second_end_copies = state.range(2) != 0};
  for (auto _ : state) benchmark::DoNotOptimize(simulate(program, durations, network).makespan);
  state.SetItemsProcessed(state.iterations() * instructions(program));
}
BENCHMARK(Simulate)
    ->Args({4, 64, 0})
    ->Args({64, 256, 0})
    ->Args({64, 1024, 0})
    ->Args({64, 4096, 0})
    ->Args({256, 4096, 0})
    ->Args({4, 64, 1})
    ->Args({64, 1024, 1})
    ->Unit(benchmark::kMillisecond);

void PlanMemory(benchmark::State& state) {
  Program program = pipeline(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  for (auto _ : state) plan_memory(program);
  state.SetItemsProcessed(state.iterations() * instructions(program));
}
BENCHMARK(PlanMemory)->Args({4, 64})->Args({64, 1024})->Unit(benchmark::kMillisecond);

void Print(benchmark::State& state) {
  const Program program = pipeline(64, 1024);
  for (auto _ : state) benchmark::DoNotOptimize(print(program));
  state.SetItemsProcessed(state.iterations() * instructions(program));
}
BENCHMARK(Print)->Unit(benchmark::kMillisecond);

void Parse(benchmark::State& state) {
  const Program program = pipeline(64, 1024);
  const std::string text = print(program);
  for (auto _ : state) benchmark::DoNotOptimize(parse_program(text));
  state.SetItemsProcessed(state.iterations() * instructions(program));
}
BENCHMARK(Parse)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace penstock
