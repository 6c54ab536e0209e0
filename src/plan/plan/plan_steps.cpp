// SPDX-License-Identifier: Apache-2.0
#include "plan/plan_steps.h"

#include <map>
#include <set>

#include "base/text.h"
#include "cost/figures_for.h"
#include "penstock/error.h"
#include "penstock/step.h"
#include "plan/merged_nodes.h"
#include "plan/place_step.h"
#include "stage/loop.h"
#include "transform/passes.h"

namespace penstock {
namespace {

int microbatches_of(const Graph& step) {
  return static_cast<int>(attribute<std::int64_t>(step.ops[loop_of(step)], "microbatches"));
}

// Samples of a micro-batch: the loop cuts its first input, as all that it cuts, along dim 0.
int samples_of(const Graph& step) {
  const Graph& body = *step.ops[loop_of(step)].body;
  return static_cast<int>(body.type(body.inputs[0]).shape[0]);
}

// The steps by the samples of a micro-batch.
std::map<int, Graph> by_size(const std::vector<Graph>& steps) {
  std::map<int, Graph> out;
  for (const Graph& step : steps) out[samples_of(step)] = eliminate_dead_code(drop_constraints(step));
  return out;
}

// With the times that were measured of the merged step, or published ones.
PlanGraph costed_graph(const Graph& step, const MergedNodes& merged, const StepPlanning& planning) {
  if (planning.costs) return measured_graph(mark_stages(step, merged), *planning.costs, {});
  return plan_graph(step, merged, published_devices().device(figures_for(planning.cluster, planning.device)));
}

MergedProblem problem_of(const std::map<int, Graph>& steps, const StepPlanning& planning, int nodes) {
  const auto& [least, first] = *steps.begin();
  MergedProblem out{.merged = merge_nodes(first, nodes), .problem = {}};
  std::vector<int> sizes;
  for (const auto& [size, step] : steps) sizes.push_back(size);
  out.problem.graph = graph_of_sizes([&](int size) { return steps.at(size); }, sizes,
                                     [&](const Graph& step) { return costed_graph(step, out.merged, planning); });
  out.problem.graph.name = planning.name;
  out.problem.graph.samples = least * microbatches_of(first);
  out.problem.cluster = planning.cluster;
  if (!planning.costs) out.problem.cluster = with_host_links(planning.cluster, planning.device);
  out.problem.replicas = planning.replicas;
  for (const auto& [size, step] : steps)
    if (!planning.any_parts) out.parts.push_back(microbatches_of(step));
  out.program = [&](const PlanFile& plan) -> std::optional<Program> {
    const auto found = steps.find(plan.samples / step_microbatches(plan));
    return found == steps.end() ? std::nullopt : std::optional(placed_program(found->second, plan));
  };
  return out;
}

// The bytes that the step holds of each parameter, on average.
struct Held {
  double elements = 0, parameters = 0, moments = 0, frozen = 0;  // of trained parameters; bytes
};

Held held_by(const Graph& step) {
  std::set<std::string> trained;
  for (int i = 0; i < step.state; ++i)
    if (const std::string& name = step.values[step.inputs[static_cast<std::size_t>(i)]].name; is_kept_by_optimiser(name))
      trained.insert(name.substr(name.find(':') + 1));
  Held out;
  for (int i = 0; i < step.state; ++i) {
    const Value& value = step.values[step.inputs[static_cast<std::size_t>(i)]];
    if (!is_floating(value.type.dtype)) continue;
    const auto bytes = static_cast<double>(value.type.bytes());
    const bool is_moment = is_kept_by_optimiser(value.name), is_trained = trained.contains(value.name);
    if (is_trained) out.elements += static_cast<double>(value.type.elements());
    (is_moment ? out.moments : is_trained ? out.parameters : out.frozen) += bytes;
  }
  return out;
}

// Gradients are summed in their parameter's dtype.
void count_states(const Held& held, DegreesOptions& options) {
  options.parameter_bytes = held.parameters / held.elements;
  options.states = {options.parameter_bytes, options.parameter_bytes, held.moments / held.elements};
}

}  // namespace

PlannedModel plan_steps(const std::vector<Graph>& steps, const StepPlanning& planning) {
  const std::map<int, Graph> sizes = by_size(steps);
  PlanOptions options = planning.options;
  const Held held = held_by(steps.front());
  if (held.elements > 0) count_states(held, options.degrees);
  // Equal groups are planned by trained parameters and published times alone.
  std::optional<MergedProblem> equal;
  if (planning.planner.races && !planning.costs && planning.replicas && held.frozen < 0.01 * held.parameters)
    equal = problem_of(sizes, planning, kMostNodes);
  const MergedProblem own = problem_of(sizes, planning, planning.planner.equal_groups ? kMostNodes : planning.nodes);
  // Nodes are the same at all sizes, so any step will do where replicas together have a size that none was given in.
  const StepOfSize any = [&](int size) { return sizes.contains(size) ? sizes.at(size) : sizes.begin()->second; };
  std::vector<PlannedModel> found = planned_models(any, own, equal, planning.planner, std::move(options));
  if (!found[0].cannot_run.empty())
    throw Error(concat("no plan by ", found[0].file.planner, " can be run"), {split(found[0].cannot_run, '\n')[0]},
                "plan with one device for each stage, or with other sizes of micro-batches");
  return std::move(found[0]);
}

std::vector<Program> planning_programs(const std::vector<Graph>& steps, int nodes) {
  const std::map<int, Graph> sizes = by_size(steps);
  const MergedNodes merged = merge_nodes(sizes.begin()->second, nodes);
  std::vector<Program> out;
  for (const auto& [size, step] : sizes) out.push_back(merged_program(mark_stages(step, merged)));
  return out;
}

}  // namespace penstock
