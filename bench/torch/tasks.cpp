// SPDX-License-Identifier: Apache-2.0
// Shows where the time of a step goes: runs every task of a compiled program, op by op, alone on one thread, and takes the thread's CPU
// time (in which other work on the machine hardly shows).
//
//   penstock compile --emit program --schedule 1f1b --actors 2 --microbatches 16 ... > program.txt
//   tasks program.txt [rounds]
#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randn.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "base/text.h"
#include "ops/definition.h"
#include "penstock/error.h"
#include "torch/bind.h"
#include "torch/vector.h"

namespace penstock {
namespace {

double now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

struct OpTime {
  double seconds = 0, flops = 0;
  int calls = 0;
};

// Operands are noise; integers are zero, which any vocabulary has.
at::Tensor operand(const TensorType& type, std::vector<Arena>& arenas) {
  arenas.emplace_back(std::max<std::int64_t>(type.bytes(), 1));
  at::Tensor x = tensor_at(arenas.back().data(), type);
  if (is_floating(type.dtype)) x.copy_(at::randn(type.shape));
  return x;
}

// W and B tasks mostly add to their results, but only the program's instructions say which results are added to.
std::vector<ResultMode> modes_of(const Program& program, std::size_t task) {
  std::vector<ResultMode> modes;
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& instruction : device.instructions) {
      if (instruction.opcode != Opcode::run || instruction.task.index() != task) continue;
      modes.clear();
      for (const Result& result : device.results_of(instruction))
        modes.insert(modes.end(), device.slots[result.slot.index()].parts.size(), result.mode);
    }
  return modes;
}

void profile(const Program& program, std::size_t number, int rounds) {
  const Task& task = program.tasks[number];
  const ScratchPlan plan = plan_scratch(task.graph);
  std::vector<Arena> arenas;
  std::vector<at::Tensor> operands;
  std::vector<BoundResult> results;
  for (ValueId input : task.graph->inputs) operands.push_back(operand(task.graph->type(input), arenas));
  const std::vector<ResultMode> modes = modes_of(program, number);
  if (modes.size() != task.graph->outputs.size()) return;
  for (std::size_t i = 0; i < modes.size(); ++i) results.push_back({operand(task.graph->type(task.graph->outputs[i]), arenas), modes[i]});
  const Arena scratch(plan.bytes);
  Spare spare;
  const std::vector<BoundCall> calls =
      bind_task(task, plan, operands, results, {scratch.data(), static_cast<std::size_t>(plan.bytes)}, spare);
  std::vector<double> best(calls.size(), 1e9);
  double best_task = 1e9;
  for (int round = 0; round < rounds; ++round) {
    const double begin = now();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      const double before = now();
      calls[i].run();
      best[i] = std::min(best[i], now() - before);
    }
    best_task = std::min(best_task, now() - begin);
  }
  std::map<std::string, OpTime> by_op;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const Op* op = calls[i].op < 0 ? nullptr : &task.graph->ops[static_cast<std::size_t>(calls[i].op)];
    OpTime& time = by_op[op ? op->name : "copy"];
    time.seconds += best[i];
    time.flops += op ? cost(task.graph, *op).flops : 0;
    ++time.calls;
  }
  std::printf("%s: %.1f us, %zu calls, scratch %lld KiB + %lld\n", task.name.c_str(), best_task * 1e6, calls.size(),
              static_cast<long long>(plan.bytes / 1024), static_cast<long long>(spare.bytes() / 1024));
  std::vector<std::pair<std::string, OpTime>> sorted(by_op.begin(), by_op.end());
  std::ranges::sort(sorted, [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
  for (const auto& [name, time] : sorted)
    std::printf("  %-40s %4d  %9.1f us  %6.0f GFLOP/s\n", name.c_str(), time.calls, time.seconds * 1e6, time.flops / time.seconds * 1e-9);
}

}  // namespace
}  // namespace penstock

int main(int argc, char** argv) {
  using namespace penstock;
  if (argc < 2) {
    std::fprintf(stderr, "usage: tasks PROGRAM [ROUNDS]\n");
    return 2;
  }
  try {
    at::set_num_threads(1);
    const at::NoGradGuard no_grad;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Program program = parse_program(read_file(argv[1]), argv[1]);
    for (std::size_t task = 0; task < program.tasks.size(); ++task) profile(program, task, argc > 2 ? std::atoi(argv[2]) : 50);
  } catch (const Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  return 0;
}
