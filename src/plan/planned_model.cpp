#include "plan/planned_model.h"

#include <algorithm>

#include "base/text.h"
#include "cost/evaluate.h"
#include "cost/time_limit.h"
#include "penstock/error.h"
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

PlannedModel planned_model(const StepOfSize& step, const GroupedProblem& of, const PlannerInfo& planner, const PlanOptions& options) {
  PlannedModel out{.problem = of.problem, .plan = make_plan(planner, of.problem, options), .file = {}};
  out.file = plan_of_nodes(step(batch_of(out.problem, out.plan.stages[0])), of.groups, out.problem, out.plan);
  out.cannot_run = why_not_run(out);
  return out;
}

std::vector<PlannedModel> planned_models(const StepOfSize& step, const GroupedProblem& own, const std::optional<GroupedProblem>& equal,
                                         const PlannerInfo& planner, PlanOptions options) {
  std::vector<PlannedModel> found;
  if (equal) {
    TimeLimit limit(options.seconds, options.clock);
    try {
      found.push_back(planned_model(step, *equal, planner_named("degrees"), runnable_groups(options, options.seconds / 2)));
      found[0].file.planner = concat(planner.name, " (degrees)");
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
  std::stable_sort(found.begin(), found.end(), [](const PlannedModel& a, const PlannedModel& b) {
    return std::pair(!a.cannot_run.empty(), a.file.predicted_time) < std::pair(!b.cannot_run.empty(), b.file.predicted_time);
  });
  return found;
}

}  // namespace penstock
