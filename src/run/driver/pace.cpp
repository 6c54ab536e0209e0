// SPDX-License-Identifier: Apache-2.0
#include "driver/pace.h"

#include "penstock/costs.h"
#include "penstock/network.h"
#include "program/flops.h"

namespace penstock {
namespace {

// Between processes of one machine: what it says too much or too little is in what steps take beyond it.
const Network kUsual{.link = {.latency = 50e-6, .bandwidth = 2e9}};

// The network counts these.
bool is_between_devices(Opcode opcode) {
  return opcode == Opcode::send || opcode == Opcode::recv || is_collective(opcode);
}

}  // namespace

void Pace::add(const Program& program, const StepResult& result) {
  IdVector<TaskId, std::uint64_t> hashes;
  for (const Task& task : program.tasks) hashes.push_back(cost_hash(*task.graph));
  for (std::size_t d = 0; d < result.devices.size(); ++d) {
    for (const Span& span : result.devices[d].spans) {
      if (span.waited) continue;
      const Instruction& instruction = program.devices[d].instructions[span.instruction];
      const double seconds = static_cast<double>(span.end - span.begin) * 1e-9;
      if (instruction.opcode != Opcode::run) {
        others_[instruction.opcode].add(seconds);
        continue;
      }
      tasks_[hashes[instruction.task]].add(seconds);
      seconds_ += seconds;
      flops_ += task_flops(program.tasks[instruction.task]);
    }
  }
  ++steps_;
  beyond_.add(result.seconds / simulate(program, durations_of(program), kUsual).makespan);
}

Durations Pace::durations_of(const Program& program) const {
  IdVector<TaskId, double> of_task;
  for (const Task& task : program.tasks) {
    const auto known = tasks_.find(cost_hash(*task.graph));
    of_task.push_back(known != tasks_.end() ? known->second.value() : flops_ > 0 ? task_flops(task) * seconds_ / flops_ : 0);
  }
  Durations out;
  for (const DeviceProgram& device : program.devices) {
    std::vector<double>& durations = out.emplace_back();
    for (const Instruction& instruction : device.instructions) {
      const bool is_run = instruction.opcode == Opcode::run, moves = is_between_devices(instruction.opcode);
      const auto other = others_.find(instruction.opcode);
      durations.push_back(is_run ? of_task[instruction.task] : moves || other == others_.end() ? 0 : other->second.value());
    }
  }
  return out;
}

double Pace::predict(const Program& program) const {
  return steps_ == 0 ? 0 : simulate(program, durations_of(program), kUsual).makespan * beyond_.value();
}

}  // namespace penstock
