// SPDX-License-Identifier: Apache-2.0
#include "planners/one_size.h"

#include <algorithm>
#include <exception>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "cost/time_limit.h"
#include "penstock/error.h"

namespace penstock {
namespace {

NodeCost cost_at(const PlanNode& node, int choice, int size, double share) {
  NodeCost out = node.costs[at(choice)];
  const SetCost found = cost_of(node, choice, size);
  out.samples = size;
  out.forward = found.forward;
  out.backward = found.backward;
  if (out.weight >= 0) out.weight = found.weight;
  out.live_bytes = found.live_bytes;
  out.swap_bytes = found.swap_bytes;
  for (auto* sync : {&out.forward_sync, &out.backward_sync})
    for (auto& [other, bytes] : *sync) bytes *= share;
  return out;
}

void set_size(PlanNode& node, int size, double share) {
  std::vector<NodeCost> costs;
  for (const int way : ways_of(node)) costs.push_back(cost_at(node, way, size, share));
  node.costs = std::move(costs);
  node.output_bytes *= share;
  for (PlanOutput& output : node.outputs) output.seconds *= share;
}

}  // namespace

PlanProblem at_size(const PlanProblem& problem, int size) {
  PlanProblem out = problem;
  out.samples = step_samples(problem);
  out.batches = allowed_batches(problem);
  const double share = static_cast<double>(size) / measured_samples(problem.graph);
  for (PlanNode& node : out.graph.nodes) set_size(node, size, share);
  for (PlanEdge& edge : out.graph.edges) edge.bytes *= share;
  return out;
}

void take_over(const PlanProblem& problem, const PlanProblem& one_size, Plan& plan) {
  for (PlanStage& stage : plan.stages) {
    stage.samples = batch_of(one_size, stage);
    for (std::size_t i = 0; i < stage.choices.size(); ++i) {
      const std::size_t node = at(stage.nodes[i]);
      const NodeCost& cost = one_size.graph.nodes[node].costs[at(stage.choices[i])];
      stage.choices[i] = choice_of(problem.graph.nodes[node], cost.degree, cost.name);
    }
  }
}

Plan plan_at_sizes(const PlannerInfo& planner, const PlanProblem& problem, const PlanOptions& options) {
  const std::vector<int> sizes = allowed_batches(problem);
  TimeLimit limit(options.seconds, options.clock);
  PlanOptions of = options;
  std::optional<Plan> best;
  bool best_fits = false;
  std::exception_ptr refused;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    of.seconds = limit.left() / static_cast<double>(sizes.size() - i);
    try {
      const PlanProblem one_size = at_size(problem, sizes[i]);
      Plan plan = planner.plan(one_size, of);
      take_over(problem, one_size, plan);
      check_plan(problem, plan);
      plan.optimal = plan.optimal && sizes.size() == 1;
      if (!can_be_simulated(figures_of(problem, plan.stages))) continue;
      const bool fits = evaluate(problem, plan);
      const bool is_better = !best || fits > best_fits || (fits == best_fits && plan.predicted_time < best->predicted_time);
      if (is_better) best = std::move(plan), best_fits = fits;
    } catch (const Error&) {
      refused = std::current_exception();
    }
  }
  if (best) return std::move(*best);
  if (refused) std::rethrow_exception(refused);
  throw Error(concat("the plans of ", planner.name, " are too long to simulate"), {}, "larger --microbatch-sizes, or a smaller --batch");
}

bool has_allowed_sizes(const PlanProblem& problem, const Plan& plan) {
  const std::vector<int> sizes = allowed_batches(problem);
  return std::all_of(plan.stages.begin(), plan.stages.end(), [&](const PlanStage& stage) {
    return std::find(sizes.begin(), sizes.end(), batch_of(problem, stage)) != sizes.end();
  });
}

}  // namespace penstock
