// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "base/papers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "penstock/error.h"
#include "planners/one_size.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

// Throws Error for a plan that is too large to simulate; planners make no more stages than they must.
void check_length(const PlanProblem& problem, const Plan& plan) {
  const PlanFigures figures = figures_of(problem, plan.stages);
  if (can_be_simulated(figures)) return;
  throw Error(concat("the plan of ", plan.planner, " is too long to simulate"),
              {concat("its ", figures.stages.size(), " stages have ", figures.microbatches, " micro-batches each"),
               concat("a plan has at most ", kMostPlanForwards, " of all stages")},
              "larger --microbatch-sizes, or a smaller --batch");
}

// Throws Error for a plan whose micro-batches have other sizes than those that the problem says.
void check_sizes(const PlanProblem& problem, const Plan& plan, const std::string& planner) {
  if (problem.batches.empty() || has_allowed_sizes(problem, plan)) return;
  const auto text = [](int size) { return std::to_string(size); };
  throw Error(concat("planner ", planner, " does not take micro-batches of ", join(allowed_batches(problem), " or ", text), " samples"),
              {concat("its stages would take ", join(plan.stages, ", ", [&](const PlanStage& s) { return text(batch_of(problem, s)); }))},
              "leave out --microbatch-sizes, or --planner best");
}

void name_stages(const PlanGraph& graph, Plan& plan) {
  for (PlanStage& stage : plan.stages) {
    if (!stage.name.empty()) continue;
    const auto name = [&](int node) { return graph.nodes[node].name; };
    stage.name = stage.nodes.size() == 1 ? name(stage.nodes[0]) : concat(name(stage.nodes.front()), " .. ", name(stage.nodes.back()));
  }
}

// The error for a plan that does not fit; it names the device that lacks most.
[[noreturn]] void fail_memory(const PlanProblem& problem, const Plan& plan) {
  std::size_t worst = 0;
  const auto lack = [&](std::size_t d) { return plan.peak_bytes[d] / problem.cluster.devices[d].memory; };
  for (std::size_t d = 0; d < plan.peak_bytes.size(); ++d)
    if (lack(d) > lack(worst)) worst = d;
  throw Error(concat("the plan of ", plan.planner, " does not fit"),
              {concat("device ", worst, " would hold ", bytes_text(plan.peak_bytes[worst]), " with one micro-batch at a time"),
               concat("it has ", bytes_text(problem.cluster.devices[worst].memory))},
              "planner best keeps to the memory of every device");
}

}  // namespace

const std::vector<PlannerInfo>& planners() {
  static const std::vector<PlannerInfo> all = {
      {.name = "best",
       .summary = "the fastest plan of all planners in simulation, improved by local search",
       .plan = plan_by_best,
       .searches = true,
       .races = true,
       .even = "pipedream"},
      {.name = "exact",
       .summary = "every split of a small graph, its devices and micro-batches, in simulation",
       .plan = plan_by_exact,
       .searches = true},
      {"graphpipe", "stages that branch and join, the shortest way at the least time per sample (GraphPipe, 2406.17145)",
       plan_by_graphpipe},
      {.name = "pipedream",
       .summary = "replicated stages of nested downsets, level by level (Narayanan et al., SOSP 2019)",
       .plan = plan_by_pipedream,
       .smallest_size = true},
      {.name = "piper",
       .summary = "data and tensor degrees and recomputation for each stage (Tarnawski et al., NeurIPS 2021)",
       .plan = plan_by_piper,
       .smallest_size = true},
      {.name = "max-load",
       .summary = "the smallest largest load with transfers, no replicas (Tarnawski et al., NeurIPS 2020)",
       .plan = plan_by_max_load,
       .smallest_size = true},
      {"dapple", "a chain of stages with replicas, placed host by host, by the latency of its pivot (DAPPLE, 2007.01045)", plan_by_dapple},
      {"spp", "a chain of stages with replicas on devices in the order of their links (SPP, 2204.10562)", plan_by_spp},
      {"bapipe", "a chain of stages balanced over unequal devices, and how far ahead they run (BaPipe, 2012.12544)", plan_by_bapipe},
      {"hetpipe", "virtual workers of unequal devices, each a balanced chain with a device of every kind (HetPipe, 2005.14038)",
       plan_by_hetpipe},
      {.name = "dawnpiper",
       .summary = "a chain of stages cut between any nodes, with recomputation and swap where memory binds (DawnPiper, 2505.05856)",
       .plan = plan_by_dawnpiper,
       .lean_ways = true},
      {.name = "degrees",
       .summary = "pipeline, data, tensor, context and sharding degrees, chunks and schedule of equal groups (docs/planning.md)",
       .plan = plan_by_degrees,
       .equal_groups = true},
  };
  return all;
}

const PlannerInfo& planner_named(const std::string& name, const std::vector<std::string>& others) {
  std::vector<std::string> names;
  for (const PlannerInfo& planner : planners()) {
    if (planner.name == name) return planner;
    names.push_back(planner.name);
  }
  names.insert(names.end(), others.begin(), others.end());
  throw Error(concat("there is no planner ", quote(name)), {"planners: " + join(names, ", ")}, hint_for(name, names));
}

const PlannerInfo& groups_planner() {
  return *std::ranges::find_if(planners(), &PlannerInfo::equal_groups);
}

Plan make_plan(const std::string& planner, const PlanProblem& problem, const PlanOptions& options) {
  return make_plan(planner_named(planner), problem, options);
}

Plan make_plan(const PlannerInfo& info, const PlanProblem& problem, const PlanOptions& options) {
  check_problem(problem);
  if (!info.lean_ways) check_nothing_swaps(problem.graph, info.name);
  const auto begin = std::chrono::steady_clock::now();
  const bool asked = info.smallest_size && !problem.batches.empty();
  Plan plan = asked ? plan_at_sizes(info, problem, options) : info.plan(problem, options);
  plan.search_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  plan.planner = plan.planner.empty() ? info.name : concat(info.name, " (", plan.planner, ")");
  name_stages(problem.graph, plan);
  if (info.equal_groups) return plan;
  check_plan(problem, plan);
  check_sizes(problem, plan, info.name);
  check_length(problem, plan);
  if (!evaluate(problem, plan) && options.memory) fail_memory(problem, plan);
  plan.lower_bound = std::max(plan.lower_bound, least_step_seconds(problem));
  return plan;
}

}  // namespace penstock
