// SPDX-License-Identifier: Apache-2.0
#include "plan/planned_model.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "cost/evaluate.h"
#include "cost/time_limit.h"
#include "lower/lower.h"
#include "penstock/error.h"
#include "plan/fitting_plan.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// Micro-batches that replicas cannot share count in a plan as if they could.
std::string why_not_run(const PlannedModel& planned) {
  if (planned.plan.degrees && planned.plan.degrees->results[0].degrees.by_block) return kNotByBlock;
  try {
    check_runnable(planned.file, planned.file.samples);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

namespace {

// The number of shares in which each of the table's micro-batches is cut for the stages' devices.
int shares_for(const std::vector<PlanStage>& stages) {
  std::vector<int> replicas;
  for (const PlanStage& stage : stages) replicas.push_back(stage.replicas());
  return shares_of(replicas);
}

// The plan with all stages in micro-batches of one size, so that a run cuts the step into `parts`. None where it does not fit.
std::optional<Plan> in_parts(const PlanProblem& problem, Plan plan, int parts) {
  const int shares = shares_for(plan.stages), samples = step_samples(problem);
  if (parts % shares != 0 || samples % parts != 0) return {};
  for (PlanStage& stage : plan.stages) stage.samples = samples / parts * shares;
  if (!evaluate(problem, plan)) return {};
  plan.optimal = false;
  plan.lower_bound = std::min(plan.lower_bound, plan.predicted_time);
  return plan;
}

// The plan, in one of the numbers of parts that the step may be cut into: planners give stages the sizes that are fastest by themselves.
std::optional<Plan> in_allowed_parts(const MergedProblem& of, Plan plan) {
  if (plan.degrees || of.parts.empty()) return plan;
  const int own = figures_of(of.problem, plan.stages).microbatches * shares_for(plan.stages);
  if (std::ranges::find(of.parts, own) != of.parts.end()) return plan;
  std::optional<Plan> best;
  for (const int parts : of.parts)
    if (std::optional<Plan> found = in_parts(of.problem, plan, parts); found && (!best || found->predicted_time < best->predicted_time))
      best = std::move(found);
  return best;
}

Plan plan_in_parts(MergedProblem of, const PlannerInfo& planner, const PlanOptions& options) {
  if (std::optional<Plan> plan = in_allowed_parts(of, make_plan(planner, of.problem, options))) return std::move(*plan);
  of.problem.replicas = false;
  if (std::optional<Plan> plan = in_allowed_parts(of, make_plan(planner, of.problem, options))) return std::move(*plan);
  throw Error(concat("the plan of ", planner.name, " does not fit the memory in ",
                     join(of.parts, " or ", [](int parts) { return std::to_string(parts); }), " micro-batches"),
              {}, "allow more micro-batches, or take planner best");
}

}  // namespace

PlanGraph graph_of_sizes(const StepOfSize& step, const std::vector<int>& sizes, const std::function<PlanGraph(const Graph&)>& graph_of) {
  PlanGraph graph;
  for (const int size : sizes) {
    PlanGraph one = graph_of(step(size));
    if (graph.nodes.empty())
      graph = std::move(one);
    else
      add_size(graph, one);
  }
  return graph;
}

PlannedModel counted_model(const StepOfSize& step, const MergedProblem& of, const PlannerInfo& planner, const PlanOptions& options) {
  PlannedModel out{.problem = of.problem, .plan = plan_in_parts(of, planner, options), .file = {}};
  out.file = plan_of_nodes(step(batch_of(out.problem, out.plan.stages[0])), of.merged, out.problem, out.plan);
  out.cannot_run = why_not_run(out);
  return out;
}

namespace {

// Orders models that can be run before those that cannot, then by time.
bool is_better(const PlannedModel& a, const PlannedModel& b) {
  return std::pair(!a.cannot_run.empty(), a.file.predicted_time) < std::pair(!b.cannot_run.empty(), b.file.predicted_time);
}

// The fastest equal groups whose replicas share micro-batches of the problem's sizes. To planner degrees these are one replica's, so it is
// asked for each number of replicas.
PlannedModel shared_groups(const StepOfSize& step, const MergedProblem& of, PlanOptions options) {
  const int devices = static_cast<int>(of.problem.cluster.devices.size()), asked = options.degrees.only.data;
  const int most = of.problem.replicas ? devices : 1;
  TimeLimit limit(options.seconds, options.clock);
  std::optional<PlannedModel> best;
  for (int data = 1; data <= most; ++data) {
    MergedProblem shares = of;
    shares.problem.batches.clear();
    for (const int size : of.problem.batches)
      if (size % data == 0) shares.problem.batches.push_back(size / data);
    if (devices % data != 0 || shares.problem.batches.empty() || (asked > 0 && asked != data)) continue;
    options.degrees.only.data = data;
    options.seconds = limit.left() / (data < most ? 2 : 1);
    try {
      PlannedModel found = planned_model(step, shares, groups_planner(), options);
      if (!best || is_better(found, *best)) best = std::move(found);
    } catch (const Error&) {
      // None with so many replicas.
    }
  }
  if (!best) throw Error(concat("no equal groups of ", of.problem.graph.name, " have micro-batches of these sizes"));
  return std::move(*best);
}

PlannedModel equal_groups(const StepOfSize& step, const MergedProblem& of, const PlanOptions& options) {
  return of.problem.batches.empty() ? planned_model(step, of, groups_planner(), options) : shared_groups(step, of, options);
}

}  // namespace

std::vector<PlannedModel> planned_models(const StepOfSize& step, const MergedProblem& own, const std::optional<MergedProblem>& equal,
                                         const PlannerInfo& planner, PlanOptions options) {
  std::vector<PlannedModel> found;
  if (equal) {
    TimeLimit limit(options.seconds, options.clock);
    try {
      found.push_back(equal_groups(step, *equal, runnable_groups(options, options.seconds / 2)));
      found[0].file.planner = concat(planner.name, " (", groups_planner().name, ")");
    } catch (const Error&) {
      // No equal groups fit the batch, or the memory.
    }
    options.seconds = limit.left();
  }
  try {
    found.push_back(planned_model(step, own, planner, options));
  } catch (const Error&) {
    if (found.empty()) throw;
  }
  std::stable_sort(found.begin(), found.end(), is_better);
  return found;
}

}  // namespace penstock
