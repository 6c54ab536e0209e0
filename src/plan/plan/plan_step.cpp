// SPDX-License-Identifier: Apache-2.0
#include "penstock/plan_step.h"

#include <algorithm>
#include <optional>

#include "cost/cost_model.h"
#include "cost/figures_for.h"
#include "lower/lower.h"
#include "plan/merged_nodes.h"
#include "plan/place_step.h"
#include "plan/planned_model.h"
#include "stage/loop.h"
#include "transform/passes.h"

namespace penstock {
PlannedStep plan_step(const Graph& traced, const ClusterSpec& cluster, const PlannerInfo& planner, const std::string& device,
                      const PlanOptions& options, int most_nodes) {
  const Graph step = eliminate_dead_code(drop_constraints(traced));
  const MergedNodes merged = merge_nodes(step, most_nodes);
  const DeviceModel& figures = published_devices().device(figures_for(cluster, device));
  PlanProblem problem{.graph = plan_graph(step, merged, figures), .cluster = with_host_links(cluster, device), .replicas = false};
  problem.graph.name = step.name;
  problem.samples = measured_samples(problem.graph) * static_cast<int>(attribute<std::int64_t>(step.ops[loop_of(step)], "microbatches"));
  const MergedProblem of{merged, problem, {}, [&](const PlanFile& plan) { return std::optional(placed_program(step, plan)); }};
  PlannedStep out;
  out.plan = planned_model([&](int) { return step; }, of, planner, options).file;
  out.step = mark_stages(step, out.plan);
  out.schedule = renumbered(out.plan, out.plan.schedule, prepare_stages(out.step).stages);
  std::erase_if(out.schedule.actors, [](const std::vector<Action>& row) { return row.empty(); });
  return out;
}

}  // namespace penstock
