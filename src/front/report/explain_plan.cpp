// SPDX-License-Identifier: Apache-2.0
#include "penstock/explain_plan.h"

#include <algorithm>
#include <limits>

#include "base/text.h"
#include "cost/evaluate.h"
#include "penstock/error.h"
#include "planners/planner_list.h"
#include "report/table.h"

namespace penstock {
namespace {

constexpr double kSame = 1e-9;  // relative difference of plans that are as good

std::string seconds_text(double seconds) {
  return time_text(seconds, true);
}

PlanProblem without_limits(PlanProblem problem) {
  for (ClusterDevice& device : problem.cluster.devices) device.memory = std::numeric_limits<double>::infinity();
  return problem;
}

// Whether the devices' memory holds the plan's stages to fewer micro-batches in flight than they would have, and which first.
bool explain_memory(const PlanProblem& problem, const Plan& best, const PlanFigures& figures, PlanExplanation& out) {
  const PlanFigures free = figures_of(without_limits(problem), best.stages);
  const double time = step_seconds(figures), freed = step_seconds(free);
  if (freed >= time * (1 - kSame)) return false;
  for (std::size_t s = 0; s < figures.stages.size(); ++s) {
    if (figures.stages[s].ahead >= free.stages[s].ahead) continue;
    out.bottleneck = "memory";
    out.detail = concat("stage ", s, " (", best.stages[s].name, ") has ", figures.stages[s].ahead / figures.stages[s].size,
                        " micro-batches in flight instead of ", free.stages[s].ahead / free.stages[s].size, ", as its devices have ",
                        bytes_text(figures.stages[s].memory), "; with enough the step would take ", seconds_text(freed));
    return true;
  }
  return false;
}

// Explains what is busy longest in a step: a stage's devices or a link, in one direction.
void explain_load(const Plan& best, const PlanFigures& figures, PlanExplanation& out) {
  const double count = figures.microbatches;
  double most = -1;
  const double step = best.predicted_time;
  for (std::size_t s = 0; s < figures.stages.size(); ++s) {
    const StageFigures& stage = figures.stages[s];
    const double busy = (stage.forward + stage.backward) * count / stage.size + stage.after_loop();
    if (busy <= most) continue;
    most = busy;
    out.bottleneck = "stage";
    out.detail = concat("stage ", s, " (", best.stages[s].name, ") computes ", seconds_text(busy), " of the step's ", seconds_text(step));
    if (stage.all_reduce > 0) out.detail += concat(", ", seconds_text(stage.all_reduce), " of them summing gradients");
    if (stage.update > 0) out.detail += concat(", ", seconds_text(stage.update), " of them updating parameters");
  }
  for (const StageLink& link : figures.links) {
    const double busy = std::max(link.forward, link.backward) * count;
    if (busy <= most) continue;
    most = busy;
    out.bottleneck = "link";
    out.detail = concat("the link from stage ", link.from, " to ", link.to, " is occupied for ", seconds_text(busy), " of the step's ",
                        seconds_text(step));
  }
}

// Names the largest part of the step.
void explain_degrees(const DegreesResult& result, PlanExplanation& out) {
  out.bottleneck = "compute";
  double most = result.compute;
  for (const auto& [name, seconds] : {std::pair("bubble", result.bubble), std::pair("communication", result.exposed)}) {
    if (seconds <= most) continue;
    out.bottleneck = name;
    most = seconds;
  }
  out.detail = concat(text(result.degrees), ": ", seconds_text(most), " of the step's ", seconds_text(result.seconds));
}

std::vector<std::vector<int>> nodes_of(const Plan& plan) {
  std::vector<std::vector<int>> out;
  for (const PlanStage& stage : plan.stages) out.push_back(stage.nodes);
  return out;
}

// The best plan with other stages, of those given or of the other planners.
void explain_next(const PlanProblem& problem, const Plan& best, std::vector<OtherPlan> others, PlanOptions options, PlanExplanation& out) {
  options.seconds /= static_cast<double>(planners().size());
  if (others.empty() && !best.degrees)
    for (const PlannerInfo& planner : planners()) {
      const bool is_asked_by_race = planner.searches && !planner.races;
      if (is_asked_by_race || planner.equal_groups) continue;
      try {
        const Plan plan = make_plan(planner, problem, options);
        if (nodes_of(plan) != nodes_of(best)) others.push_back({plan.planner, plan.predicted_time});
      } catch (const Error&) {
        // It has no plan for this graph or cluster.
      }
    }
  const auto sooner = [](const OtherPlan& a, const OtherPlan& b) { return a.predicted_time < b.predicted_time; };
  if (!others.empty()) out.next = *std::min_element(others.begin(), others.end(), sooner);
}

// Devices of a group of the last level: no part of one can be added.
std::size_t devices_of_unit(const ClusterSpec& cluster) {
  std::size_t below = 1;
  for (std::size_t i = 0; i + 1 < cluster.levels.size(); ++i) below *= static_cast<std::size_t>(cluster.levels[i].size);
  return below;
}

void one_more_unit(ClusterSpec& cluster) {
  cluster.devices.insert(cluster.devices.end(), devices_of_unit(cluster), cluster.devices.back());
  if (cluster.levels.empty()) cluster.levels.push_back({1, {}});
  ++cluster.levels.back().size;
}

// More of anything is never worse: the plan itself can still be had.
void add_changes(const std::string& planner, const PlanProblem& of, const Plan& best, PlanOptions options, PlanExplanation& out) {
  options.seconds /= 3;
  if (best.degrees) options = runnable_groups(options, options.seconds);
  const PlannerInfo& info = best.degrees ? groups_planner() : planner_named(planner);
  const auto add = [&](const std::string& what, auto change) {
    PlanProblem problem = of;
    problem.samples = step_samples(of);  // the same step, however many devices there are
    change(problem.cluster);
    PlanExplanation::Change& found = out.changes.emplace_back(PlanExplanation::Change{what});
    try {
      found.predicted_time = std::min(make_plan(info, problem, options).predicted_time, out.planned_time);
    } catch (const Error& error) {
      found.refused = split(error.what(), '\n').front();
    }
  };
  const std::size_t more = devices_of_unit(of.cluster);
  add(more == 1 ? "one more device" : concat(more, " more devices"), one_more_unit);
  add("twice the memory", [](ClusterSpec& cluster) {
    for (ClusterDevice& device : cluster.devices) device.memory *= 2;
  });
  add("twice the bandwidth", [](ClusterSpec& cluster) {
    for (ClusterSpec::Level& level : cluster.levels) level.link.bandwidth *= 2;
    for (auto& [pair, link] : cluster.between) link.bandwidth *= 2;
  });
}

}  // namespace

PlanExplanation explain(const std::string& planner, const PlanProblem& problem, const Plan& plan, const std::vector<OtherPlan>& others,
                        const PlanOptions& options) {
  PlanExplanation out;
  out.planned_time = plan.predicted_time;
  if (plan.degrees) {
    explain_degrees(plan.degrees->results[0], out);
  } else {
    const PlanFigures figures = figures_of(problem, plan.stages);
    if (!explain_memory(problem, plan, figures, out)) explain_load(plan, figures, out);
  }
  explain_next(problem, plan, others, options, out);
  add_changes(planner, problem, plan, options, out);
  return out;
}

}  // namespace penstock
