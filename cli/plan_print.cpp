// SPDX-License-Identifier: Apache-2.0
// penstock plan: a plan as text and as JSON.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "report/table.h"

namespace penstock {
namespace {

using nlohmann::ordered_json;

constexpr double kSameTime = 1e-3;  // relative difference of times that read alike

std::string seconds_text(double seconds) {
  return time_text(seconds, true);
}

// Returns how much longer than the fastest plan it may take, as a share; infinite: nothing is known.
double gap_of(const PlanFile& plan) {
  return plan.lower_bound > 0 ? plan.predicted_time / plan.lower_bound - 1 : std::numeric_limits<double>::infinity();
}

// Returns a line that says which memory a limit was held against; empty: there is no limit.
std::string memory_text(const PlannedModel& planned) {
  if (std::isinf(weakest(planned.problem.cluster).memory)) return "";
  return planned.is_compiled ? "Memory is what the plan's program holds.\n" : "Memory is what the planner counts; a run may hold more.\n";
}

const char* memory_of(const PlannedModel& planned) {
  return planned.is_compiled ? "program" : "planner";
}

std::string text_of(const PlannedModel& planned, const PlanArguments& arguments) {
  const PlanFile& plan = planned.file;
  std::vector<std::vector<std::string>> rows;
  for (const PlanFile::Stage& stage : plan.stages)
    rows.push_back({stage.name, std::to_string(stage.nodes.size()), devices_text(stage), std::to_string(stage.micro_batch),
                    seconds_text(stage.forward), seconds_text(stage.backward), bytes_text(stage.bytes)});
  const std::string bound = plan.lower_bound > 0 ? concat("; no plan takes less than ", seconds_text(plan.lower_bound),
                                                          ", which leaves a gap of ", fixed(100 * gap_of(plan), 1), " %")
                                                 : "";
  const std::string limit =
      planner_named(arguments.planner).searches ? concat(" of at most ", seconds_text(arguments.options.seconds)) : "";
  return concat(plan.model, " on ", plan.cluster, ", by ", plan.planner, " in ", seconds_text(plan.search_seconds), limit, "\n\n",
                table({"stage", "nodes", "devices", "micro-batch", "forward", "backward", "memory"}, rows), "\nA step of ",
                counted(plan.samples, "sample"), " in ", counted(plan.microbatches, "micro-batch"), " takes ",
                seconds_text(plan.predicted_time), bound, ".\nThe planner's own objective: ", seconds_text(plan.bottleneck),
                planned.plan.optimal ? ", proven the least" : "", ".\n", memory_text(planned));
}

std::string text_of(const PlanExplanation& explanation, double predicted_time) {
  const auto change_text = [&](double time, double from) {
    const double percent = 100 * (time / from - 1);
    return concat(seconds_text(time), " (", percent >= 0 ? "+" : "", fixed(percent, 1), " %)");
  };
  std::string out;
  if (std::abs(explanation.planned_time / predicted_time - 1) > kSameTime)
    out = concat("By the costs of its nodes, of which bottleneck and changes are, the step takes ", seconds_text(explanation.planned_time),
                 "; by its stages, measured whole, ", seconds_text(predicted_time), ".\n");
  out += concat("Bottleneck: ", explanation.bottleneck, "; ", explanation.detail, ".\n");
  out += explanation.next.planner.empty() ? "No planner has another plan.\n"
                                          : concat("Next best plan: ", explanation.next.planner, ", ",
                                                   change_text(explanation.next.predicted_time, predicted_time), ".\n");
  std::vector<std::vector<std::string>> rows;
  for (const PlanExplanation::Change& change : explanation.changes)
    rows.push_back({change.what, change.refused.empty() ? change_text(change.predicted_time, explanation.planned_time) : change.refused});
  return out + "\n" + table({"with", "a step takes"}, rows);
}

ordered_json json_of(const PlanExplanation& explanation) {
  ordered_json out = {{"bottleneck", explanation.bottleneck},
                      {"detail", explanation.detail},
                      {"planned_time", explanation.planned_time},
                      {"next", nullptr}};
  if (!explanation.next.planner.empty())
    out["next"] = {{"planner", explanation.next.planner}, {"predicted_time", explanation.next.predicted_time}};
  out["changes"] = ordered_json::array();
  for (const PlanExplanation::Change& change : explanation.changes) {
    out["changes"].push_back({{"what", change.what}});
    if (change.refused.empty())
      out["changes"].back()["predicted_time"] = change.predicted_time;
    else
      out["changes"].back()["refused"] = change.refused;
  }
  return out;
}

// Adds the figures of each stage and link that the plan's file does not have.
void add_figures(const PlannedModel& candidate, ordered_json& out) {
  const PlanFigures figures = figures_of(candidate.problem, candidate.plan.stages);
  out["figures"] = out["links"] = ordered_json::array();
  for (std::size_t s = 0; s < figures.stages.size(); ++s) {
    const PlanStage& stage = candidate.plan.stages[s];
    const StageFigures& of = figures.stages[s];
    ordered_json ways = ordered_json::array();
    for (std::size_t i = 0; i < stage.nodes.size(); ++i) {
      const std::vector<NodeCost>& costs = candidate.problem.graph.nodes[at(stage.nodes[i])].costs;
      ways.push_back(costs.empty() ? "cpu" : costs[at(stage.choices.empty() ? 0 : stage.choices[i])].name);
    }
    out["figures"].push_back({{"degree", stage.degree},
                              {"replicas", stage.replicas()},
                              {"ways", ways},
                              {"forward", of.forward},
                              {"backward", of.backward},
                              {"gradient_sum", of.all_reduce},
                              {"update", of.update}});
  }
  for (const StageLink& link : figures.links)
    out["links"].push_back(
        {{"from", link.from}, {"to", link.to}, {"forward", link.forward}, {"backward", link.backward}, {"latency", link.latency}});
}

// The lines above a plan: why train cannot run it, and what was assumed.
std::string head_of(const std::vector<std::string>& assumptions, const std::string& why_not) {
  std::string out;
  if (!why_not.empty()) out += concat("train cannot run this plan: ", why_not, "\n");
  if (!assumptions.empty()) out += concat("Assumed: ", join(assumptions, "; "), ".\n");
  return out.empty() ? out : out + "\n";
}

// The flags that give a run these axes.
std::string mesh_text(const Degrees& d) {
  std::string out = concat("--mesh pipe=", d.pipe, ",data=", d.data);
  if (d.split.context > 1) out += concat(",context=", d.split.context);
  if (d.split.tensor > 1) out += concat(",tensor=", d.split.tensor);
  return concat(out, d.split.sequence ? " --set layout.sequence=tensor" : "");
}

// The form of planner degrees.
ordered_json json_of(const DegreesResult& result) {
  const Degrees& d = result.degrees;
  return {{"schedule", d.schedule},
          {"pipe", d.pipe},
          {"data", d.data},
          {"tensor", d.split.tensor},
          {"context", d.split.context},
          {"sequence", d.split.sequence},
          {"order", order_text(d)},
          {"chunks", d.chunks},
          {"unit", d.unit},
          {"zero", d.zero},
          {"by_block", d.by_block},
          {"local", d.local},
          {"mesh", mesh_text(d)},
          {"recompute", d.recompute},
          {"microbatches", d.microbatches},
          {"micro_batch", d.samples},
          {"predicted_time", result.seconds},
          {"compute", result.compute},
          {"bubble", result.bubble},
          {"exposed", result.exposed},
          {"split_seconds", result.split_seconds},
          {"memory", result.memory},
          {"gathered", result.gathered},
          {"reduced", result.reduced},
          {"fits", result.fits}};
}

// The part of the step in which these degrees lose most against the best.
std::string why_not(const DegreesResult& result, const DegreesResult& best) {
  if (!result.fits) return "too large";
  if (result.seconds <= best.seconds) return "";
  const std::pair<const char*, double> parts[] = {
      {"compute", result.compute - best.compute}, {"bubble", result.bubble - best.bubble}, {"exposed", result.exposed - best.exposed}};
  const auto most = std::max_element(std::begin(parts), std::end(parts), [](const auto& a, const auto& b) { return a.second < b.second; });
  return concat(most->first, " +", time_text(most->second, true));
}

std::vector<std::string> row_of(const DegreesResult& result, const DegreesResult& best) {
  const auto share = [&](double seconds) { return concat(fixed(100 * seconds / result.seconds, 1), " %"); };
  return {text(result.degrees),
          time_text(result.seconds, true),
          concat(result.seconds >= best.seconds ? "+" : "", fixed(100 * (result.seconds / best.seconds - 1), 1), " %"),
          share(result.compute),
          share(result.bubble),
          share(result.exposed),
          share(result.split_seconds),
          bytes_text(result.memory),
          why_not(result, best)};
}

// The best of each schedule, ZeRO level and recomputation, and of each split.
std::string alternatives_text(const DegreesPlan& plan) {
  std::vector<std::vector<std::string>> rows;
  std::set<std::string> families;
  std::set<Split> splits;
  for (const DegreesResult& result : plan.results) {
    const Degrees& d = result.degrees;
    const bool is_first_of_family = families.insert(concat(d.schedule, d.zero, d.by_block, d.local > 1, d.recompute)).second;
    if (splits.insert(d.split).second || is_first_of_family) rows.push_back(row_of(result, plan.results[0]));
  }
  return table({"degrees", "step", "", "compute", "bubble", "exposed", "of it split", "memory", "loses by"}, rows);
}

std::string equal_groups_text(const PlannedModel& candidate) {
  const DegreesPlan& plan = *candidate.plan.degrees;
  const DegreesResult& best = plan.results[0];
  const Degrees& d = best.degrees;
  const auto line = [&](const char* what, double seconds) {
    return concat(what, " ", time_text(seconds, true), " (", fixed(100 * seconds / best.seconds, 1), " %)");
  };
  return concat(candidate.file.model, " on ", candidate.file.cluster, ", by ", candidate.file.planner, " in ",
                time_text(candidate.file.search_seconds, true), ": ", plan.results.size(), " of ", plan.considered, " candidates simulated",
                plan.late ? " in time" : "", "\n\n", text(d), "\nA step of ", counted(candidate.file.samples, "sample"), " in ",
                counted(d.microbatches, "micro-batch"), " of ", d.samples, " on each replica takes ", time_text(best.seconds, true), ":\n",
                join({line("compute", best.compute), line("bubble", best.bubble), line("exposed communication", best.exposed)}, ", "),
                ".\nThe fullest device holds ", bytes_text(best.memory), ".\n", memory_text(candidate), "Its mesh: ", mesh_text(d), "\n");
}

ordered_json groups_json(const PlanArguments& arguments, const PlanReport& report) {
  const DegreesPlan& plan = *report.planned.plan.degrees;
  ordered_json out = ordered_json::parse(print(report.planned.file, false));
  out.update(json_of(plan.results[0]));
  out["considered"] = plan.considered;
  out["simulated"] = plan.results.size();
  out["assumed"] = report.assumed;
  out["memory_of"] = memory_of(report.planned);
  out["cannot_run"] = report.planned.cannot_run;
  if (!arguments.explain) return out;
  out["alternatives"] = ordered_json::array();
  for (const DegreesResult& result : plan.results) out["alternatives"].push_back(json_of(result));
  return out;
}

ordered_json stages_json(const PlanArguments& arguments, const PlanReport& report) {
  const PlannedModel& planned = report.planned;
  ordered_json out = ordered_json::parse(print(planned.file, false));
  if (planned.file.lower_bound > 0) out["gap"] = gap_of(planned.file);
  out["bottleneck_optimal"] = planned.plan.optimal;
  out["time_limit"] = arguments.options.seconds;
  out["assumed"] = report.assumed;
  out["memory_of"] = memory_of(planned);
  out["cannot_run"] = planned.cannot_run;
  if (planned.plan.degrees)
    out["degrees"] = text(planned.plan.degrees->results[0].degrees);
  else
    add_figures(planned, out);
  if (report.explanation) out["explanation"] = json_of(*report.explanation);
  return out;
}

}  // namespace

void print_plan(const PlanArguments& arguments, const PlanReport& report) {
  const PlannedModel& planned = report.planned;
  const bool groups = planner_named(arguments.planner).equal_groups;
  if (arguments.json) return print_json(groups ? groups_json(arguments, report) : stages_json(arguments, report));
  std::string out = head_of(report.assumed, planned.cannot_run);
  if (groups) {
    out += equal_groups_text(planned);
    if (arguments.explain) out += concat("\n", alternatives_text(*planned.plan.degrees));
  } else {
    out += text_of(planned, arguments);
    if (planned.plan.degrees) out += concat("Degrees: ", text(planned.plan.degrees->results[0].degrees), "\n");
    if (report.explanation) out += concat("\n", text_of(*report.explanation, planned.file.predicted_time));
  }
  std::fputs(out.c_str(), stdout);
}

}  // namespace penstock
