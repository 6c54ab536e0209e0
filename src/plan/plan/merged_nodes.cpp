// SPDX-License-Identifier: Apache-2.0
#include "plan/merged_nodes.h"

#include <algorithm>

#include "base/text.h"
#include "cost/evaluate.h"
#include "lower/lower.h"
#include "lower/member_inputs.h"
#include "penstock/error.h"
#include "schedule/kinds.h"
#include "stage/loop.h"

namespace penstock {
namespace {

// Only which nodes are cheap matters: 0.1 TFLOP/s and 20 GB/s, as of one processor core.
DeviceModel any_device() {
  DeviceModel device;
  device.f32 = device.f64 = 1e11;
  device.bandwidth = 2e10;
  return device;
}

TaskSeconds by_roofline(const DeviceModel& device) {
  return [&device](const StageTask& task) { return roofline_seconds(task.graph, device); };
}

}  // namespace

MergedNodes merge_nodes(const Graph& step, int most) {
  MergedNodes own;
  for (const std::string& node : nodes_of(step)) own[node] = node;
  const DeviceModel device = any_device();
  PlanGraph graph = plan_graph_of(prepare_stages(mark_stages(step, own)), by_roofline(device));
  add_order(graph, step);
  return merged_nodes(graph, most);
}

PlanGraph plan_graph(const Graph& step, const MergedNodes& merged, const DeviceModel& device) {
  const Graph marked = mark_stages(step, merged);
  PlanGraph out = plan_graph_of(prepare_stages(marked), by_roofline(device));
  const Program program = merged_program(marked);
  CostContext context;
  context.roofline = device;
  share_update(out, update_seconds(program, task_seconds(program, {}, context)));
  return out;
}

PlanGraph measured_graph(const Graph& marked, const Costs& costs, const CostContext& context) {
  const Program program = merged_program(marked);
  const auto seconds = action_seconds(program, durations_of(program, costs, context));
  PlanGraph out = plan_graph_of(prepare_stages(marked), [&](const StageTask& task) {
    const auto found = seconds.find({task.stage.value, task.kind});
    return found == seconds.end() ? 0 : found->second;
  });
  share_update(out, update_seconds(program, task_seconds(program, costs, context)));
  return out;
}

namespace {

// The bytes that nodes hold in their ways to hold less, in micro-batches of one size.
struct LeanBytes {
  PlanGraph again;                // of the step with all nodes computed again
  std::vector<double> swappable;  // by node
};

LeanBytes lean_bytes(const PlanGraph& graph, const Graph& marked) {
  StagedStep staged = prepare_stages(marked);
  LeanBytes out{.again = {}, .swappable = swappable_bytes(staged)};
  recompute_loop(staged, /*all=*/true);
  out.again = plan_graph_of(staged, [](const StageTask&) { return 0.0; });
  check_same_nodes(graph, out.again);
  return out;
}

}  // namespace

void add_lean_ways(PlanGraph& graph, bool swaps, const std::function<Graph(int size)>& marked) {
  std::vector<LeanBytes> lean;  // by size
  for (const NodeCost& cost : graph.nodes.at(0).costs) lean.push_back(lean_bytes(graph, marked(cost.samples)));
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    std::vector<NodeCost>& costs = graph.nodes[n].costs;
    const std::vector<NodeCost> plain = costs;
    const bool saves = lean[0].again.nodes[n].costs[0].live_bytes < plain[0].live_bytes;
    for (std::size_t size = 0; saves && size < plain.size(); ++size) {
      NodeCost& cost = costs.emplace_back(plain[size]);
      cost.name = "recomputed";
      cost.backward += cost.forward;
      cost.live_bytes = lean[size].again.nodes[n].costs[0].live_bytes;
      cost.recompute = true;
    }
    for (std::size_t size = 0; swaps && lean[0].swappable[n] > 0 && size < plain.size(); ++size) {
      NodeCost& cost = costs.emplace_back(plain[size]);
      cost.name = "swapped";
      cost.swap_bytes = lean[size].swappable[n];
      cost.live_bytes -= cost.swap_bytes;
    }
  }
}

PlanSplit split_graph(const Graph& step, const MergedNodes& merged, const DeviceModel& device, const CompileOptions& options,
                      const PlanGraph& whole) {
  const StagedStep member = first_member(prepare_stages(mark_stages(step, merged), true, options.axes), options);
  PlanSplit out{.split = {}, .graph = plan_graph_of(member, by_roofline(device))};
  check_same_nodes(whole, out.graph);
  // An update takes as long as the bytes that it moves.
  for (std::size_t n = 0; n < whole.nodes.size(); ++n) {
    const NodeCost& of_all = whole.nodes[n].costs[0];
    NodeCost& own = out.graph.nodes[n].costs[0];
    if (of_all.parameter_bytes > 0) own.update = of_all.update * own.parameter_bytes / of_all.parameter_bytes;
  }
  return out;
}

Program merged_program(const Graph& step) {
  ScheduleOptions options;
  options.actors = 1;
  const StageShape shape = shape_of(step);
  options.chunks = static_cast<int>(shape.predecessors.size());
  options.microbatches = static_cast<int>(attribute<std::int64_t>(step.ops[loop_of(step)], "microbatches"));
  return lower(step, without_missing(make_schedule("sequential", options), shape));
}

std::map<std::pair<std::int32_t, Kind>, double> action_seconds(const Program& program, const Durations& seconds) {
  std::map<std::pair<std::int32_t, Kind>, double> out;
  for (std::size_t d = 0; d < program.devices.size(); ++d) {
    double inputs = 0;  // since the last run: lowering fills an input right before its first reader
    for (std::size_t k = 0; k < program.devices[d].instructions.size(); ++k) {
      const Instruction& i = program.devices[d].instructions[k];
      if (i.opcode == Opcode::input) inputs += seconds[d][k];
      if (i.opcode != Opcode::run) continue;
      if (i.action) out[{i.stage, i.kind}] = inputs + seconds[d][k];
      inputs = 0;
    }
  }
  return out;
}

double update_seconds(const Program& program, const std::vector<double>& seconds) {
  double sum = 0;
  bool looped = false;
  for (const Instruction& i : program.devices[0].instructions) {
    looped = looped || i.action;
    if (i.opcode == Opcode::run && !i.action && looped) sum += seconds[i.task.index()];
  }
  return sum;
}

void share_update(PlanGraph& graph, double seconds) {
  double bytes = 0;
  for (const PlanNode& node : graph.nodes) bytes += node.costs[0].parameter_bytes;
  for (PlanNode& node : graph.nodes)
    if (node.costs[0].parameter_bytes > 0) node.costs[0].update = seconds * node.costs[0].parameter_bytes / bytes;
}

StageShape shape_of(const Graph& step) {
  const StagedStep staged = prepare_stages(step);
  return cut(staged, std::vector<bool>(staged.stages.size())).shape;
}

Schedule without_missing(Schedule schedule, const StageShape& shape) {
  for (auto& row : schedule.actors)
    std::erase_if(row, [&](const Action& action) {
      const bool backward = action.kind == Kind::B || action.kind == Kind::I || action.kind == Kind::W;
      return (backward || is_residual(action.kind)) && !shape.has_backward[action.stage];
    });
  schedule.cells.clear();
  return schedule;
}

PlanFile plan_of_nodes(const Graph& step, const MergedNodes& merged, const PlanProblem& problem, Plan& plan) {
  std::map<std::string, std::vector<std::string>> nodes_of_merged, nodes_of_stage;
  for (const std::string& node : nodes_of(step)) nodes_of_merged[merged.at(node)].push_back(node);
  MergedNodes stage_of;
  for (PlanStage& stage : plan.stages) {
    std::vector<std::string> nodes;  // in the order of tracing, as merged ones are
    for (const int node : stage.nodes) {
      const std::vector<std::string>& more = nodes_of_merged.at(problem.graph.nodes[node].name);
      nodes.insert(nodes.end(), more.begin(), more.end());
    }
    if (!plan.degrees) stage.name = nodes.size() == 1 ? nodes[0] : concat(nodes.front(), " .. ", nodes.back());
    for (const std::string& node : nodes) stage_of[node] = stage.name;
    nodes_of_stage[stage.name] = std::move(nodes);
  }
  const StagedStep staged = prepare_stages(mark_stages(step, stage_of));
  if (!plan.degrees) {  // equal groups come with a table of their row
    const auto place = [&](const PlanStage& stage) { return std::find(staged.stages.begin(), staged.stages.end(), stage.name); };
    std::sort(plan.stages.begin(), plan.stages.end(), [&](const PlanStage& a, const PlanStage& b) { return place(a) < place(b); });
    evaluate(problem, plan);
  }

  PlanFile file = plan_file_of(problem, plan);
  file.file = "the plan";
  std::vector<std::string> names;
  for (PlanFile::Stage& stage : file.stages) {
    stage.nodes = nodes_of_stage.at(stage.name);
    for (std::vector<std::string>* marked : {&stage.recompute, &stage.swap})
      for (const std::string& merged_node : std::exchange(*marked, {})) {
        const std::vector<std::string>& more = nodes_of_merged.at(merged_node);
        marked->insert(marked->end(), more.begin(), more.end());
      }
    names.push_back(stage.name);
  }
  if (staged.stages == names) file.schedule = without_missing(std::move(file.schedule), cut(staged, std::vector<bool>(names.size())).shape);
  return file;
}

Graph mark_stages(const Graph& step, const PlanFile& plan) {
  std::map<std::string, std::string> stage_of;
  std::set<std::string> again, swapped;
  for (const PlanFile::Stage& stage : plan.stages) {
    for (const std::string& node : stage.nodes) stage_of[node] = stage.name;
    again.insert(stage.recompute.begin(), stage.recompute.end());
    swapped.insert(stage.swap.begin(), stage.swap.end());
  }
  return mark_stages(step, stage_of, again, swapped);
}

}  // namespace penstock
