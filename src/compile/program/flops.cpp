// SPDX-License-Identifier: Apache-2.0
#include "program/flops.h"

#include "ops/definition.h"
#include "program/graph_facts.h"

namespace penstock {
namespace {

double flops_of(const TaskGraph& graph) {
  return graph.facts().flops.get([&] {
    double flops = 0;
    for (const Op& op : graph->ops) flops += cost(*graph, op).flops;
    return flops;
  });
}

}  // namespace

double task_flops(const Task& task) {
  return flops_of(task.graph);
}

double step_flops(const Program& program) {
  std::vector<double> of_task;
  for (const Task& task : program.tasks) of_task.push_back(flops_of(task.graph));
  double flops = 0;
  for (const DeviceProgram& device : program.devices)
    for (const Instruction& instruction : device.instructions)
      if (instruction.opcode == Opcode::run) flops += of_task[instruction.task.index()];
  return flops;
}

}  // namespace penstock
