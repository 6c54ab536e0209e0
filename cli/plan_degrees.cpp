// penstock plan --planner degrees
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/output.h"
#include "cli/plan.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "degrees/degrees.h"
#include "degrees/degrees_step.h"
#include "penstock/error.h"
#include "penstock/timeline.h"
#include "report/table.h"

namespace penstock {
namespace {

using nlohmann::ordered_json;

// As Penstock trains: parameters of bf16 are f32 with a copy in bf16, their gradients are summed in f32.
StateBytes states_of(const std::string& dtype) {
  if (dtype == "f64") return {8, 8, 16};
  if (dtype == "bf16") return {2, 4, 12};
  return {4, 4, 8};
}

StateBytes parse_states(const std::string& text) {
  const std::vector<std::string> parts = split(text, '+');
  std::vector<double> bytes;
  for (const std::string& part : parts) {
    double& number = bytes.emplace_back(-1);
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (failure != std::errc() || end != part.data() + part.size() || !(number >= 0 && number <= 1024)) bytes.clear();
    if (bytes.empty()) break;
  }
  if (bytes.size() != 3 || !(bytes[0] > 0 && bytes[1] > 0))
    throw Error(concat("--states ", text, ": not three numbers of bytes"), {}, "of a parameter, its gradient, the optimiser: 2+2+12");
  return {bytes[0], bytes[1], bytes[2]};
}

ordered_json json_of(const DegreesResult& result) {
  const Degrees& d = result.degrees;
  return {{"schedule", d.schedule},
          {"pipe", d.pipe},
          {"data", d.data},
          {"across", d.across},
          {"chunks", d.chunks},
          {"unit", d.unit},
          {"zero", d.zero},
          {"by_block", d.by_block},
          {"local", d.local},
          {"recompute", d.recompute},
          {"microbatches", d.microbatches},
          {"micro_batch", d.samples},
          {"predicted_time", result.seconds},
          {"compute", result.compute},
          {"bubble", result.bubble},
          {"exposed", result.exposed},
          {"memory", result.memory},
          {"gathered", result.gathered},
          {"reduced", result.reduced},
          {"fits", result.fits}};
}

std::string stage_name(const PlanProblem& problem, const std::vector<int>& nodes) {
  const auto name = [&](int node) { return problem.graph.nodes[at(node)].name; };
  return nodes.size() == 1 ? name(nodes[0]) : concat(name(nodes.front()), " .. ", name(nodes.back()));
}

// The keys that every plan has, and those of degrees.
ordered_json json_of(const Candidate& candidate) {
  const DegreesPlan& plan = *candidate.degrees;
  ordered_json out = ordered_json::parse(print(candidate.file, false));
  out.update(json_of(plan.results[0]));
  out["considered"] = plan.considered;
  out["simulated"] = plan.results.size();
  return out;
}

std::vector<std::string> row_of(const DegreesResult& result, double best) {
  const auto share = [&](double seconds) { return concat(fixed(100 * seconds / result.seconds, 1), " %"); };
  return {text(result.degrees),
          time_text(result.seconds, true),
          concat(result.seconds >= best ? "+" : "", fixed(100 * (result.seconds / best - 1), 1), " %"),
          share(result.compute),
          share(result.bubble),
          share(result.exposed),
          bytes_text(result.memory),
          result.fits ? "" : "too large"};
}

// Of each schedule, ZeRO level and recomputation the best.
std::string alternatives_text(const DegreesPlan& plan) {
  std::vector<std::vector<std::string>> rows;
  std::set<std::string> families;
  for (const DegreesResult& result : plan.results) {
    const Degrees& d = result.degrees;
    if (families.insert(concat(d.schedule, d.zero, d.by_block, d.local > 1, d.recompute)).second)
      rows.push_back(row_of(result, plan.results[0].seconds));
  }
  return table({"degrees", "step", "", "compute", "bubble", "exposed", "memory", ""}, rows);
}

std::string text_of(const Candidate& candidate) {
  const DegreesPlan& plan = *candidate.degrees;
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
                ".\nThe fullest device holds ", bytes_text(best.memory), ".\n");
}

PlanFile file_of(const PlanProblem& problem, const DegreesPlan& plan) {
  const DegreesResult& best = plan.results[0];
  const Degrees& degrees = best.degrees;
  PlanFile out;
  out.model = problem.graph.name;
  out.cluster = problem.cluster.name;
  out.planner = "degrees";
  out.samples = step_samples(problem);
  out.microbatches = degrees.microbatches;
  out.peak_bytes.assign(problem.cluster.devices.size(), 0);
  for (std::size_t s = 0; s < best.stages.size(); ++s) {
    const int actor = static_cast<int>(s) % degrees.pipe;
    const std::vector<int> group = group_of(degrees, actor);
    const SetCost cost = cost_of(problem.graph, best.stages[s], {}, degrees.samples);
    const double speed = weakest(problem.cluster, group).speed;
    PlanFile::Stage& stage = out.stages.emplace_back();
    stage.name = stage_name(problem, best.stages[s]);
    for (const int node : best.stages[s]) stage.nodes.push_back(problem.graph.nodes[at(node)].name);
    stage.devices = group;
    stage.micro_batch = degrees.samples * degrees.data;
    stage.forward = cost.forward / speed;
    stage.backward = cost.backward / speed;
    stage.bytes = best.peak_bytes[at(actor)];
    for (const int device : group) out.peak_bytes[at(device)] = stage.bytes;
    if (s == 0) continue;
    const ClusterLink link = slowest_link(problem.cluster, out.stages[s - 1].devices, group);
    const double bytes = bytes_between(problem.graph, {.nodes = best.stages[s - 1]}, {.nodes = best.stages[s]}, stage.micro_batch);
    out.links.push_back({static_cast<int>(s) - 1, static_cast<int>(s), bytes, bytes / degrees.data / link.bandwidth + link.latency});
  }
  out.bottleneck = out.predicted_time = best.seconds;
  out.zero = degrees.zero;
  out.local = degrees.local;
  out.schedule = computing_table(degrees);
  return out;
}

}  // namespace

DegreesOptions degrees_options(const PlanArguments& arguments, const std::string& dtype) {
  DegreesOptions options;
  options.states = arguments.states.empty() ? states_of(dtype) : parse_states(arguments.states);
  options.parameter_bytes = dtype == "f64" ? 8 : 4;
  if (!arguments.only.empty()) options.only = parse_degrees_limits(arguments.only);
  if (arguments.no_replicas && options.only.data == 0) options.only.data = 1;
  options.every = arguments.every;
  options.clock = arguments.options.clock;
  if (!options.every) options.seconds = arguments.options.seconds;
  return options;
}

void keep_to_runnable(const std::string& flag, DegreesLimits& only) {
  if (only.by_block == 1)
    throw Error(concat(flag, " and --only by-block=1"), {kNotByBlock}, concat("leave out ", flag, " to see what it would take"));
  only.by_block = 0;
}

Candidate plan_by_degrees(const PlanProblem& problem, const DegreesOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Candidate out{.problem = problem, .plan = {}, .file = {}};
  out.degrees = plan_degrees(problem, options);
  out.file = file_of(problem, *out.degrees);
  out.file.search_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  out.plan.planner = "degrees";
  out.plan.predicted_time = out.file.predicted_time;
  for (const std::vector<int>& nodes : out.degrees->results[0].stages) out.plan.stages.push_back({.nodes = nodes});
  return out;
}

void print_degrees(const PlanArguments& arguments, const Candidate& candidate, const std::vector<std::string>& assumed,
                   const std::string& cannot_run) {
  const DegreesPlan& plan = *candidate.degrees;
  if (!arguments.json) {
    std::printf("%s", text_of(candidate).c_str());
    if (arguments.explain) std::printf("\n%s", alternatives_text(plan).c_str());
    return;
  }
  ordered_json out = json_of(candidate);
  out["assumed"] = assumed;
  out["cannot_run"] = cannot_run;
  if (arguments.explain) {
    out["alternatives"] = ordered_json::array();
    for (const DegreesResult& result : plan.results) out["alternatives"].push_back(json_of(result));
  }
  print_json(out);
}

}  // namespace penstock
