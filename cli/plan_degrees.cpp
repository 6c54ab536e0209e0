// penstock plan --planner degrees
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/numbers.h"
#include "base/text.h"
#include "cli/plan.h"
#include "penstock/error.h"
#include "plan/degrees.h"
#include "plan/evaluate.h"
#include "report/table.h"
#include "simulate/timeline.h"

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
ordered_json json_of(const PlanProblem& problem, const DegreesPlan& plan, double search_seconds) {
  const DegreesResult& best = plan.results[0];
  const Degrees& degrees = best.degrees;
  ordered_json out = {{"model", problem.graph.name}, {"cluster", problem.cluster.name}, {"planner", "degrees"}};
  out["stages"] = ordered_json::array();
  for (std::size_t s = 0; s < best.stages.size(); ++s) {
    ordered_json nodes = ordered_json::array();
    for (const int node : best.stages[s]) nodes.push_back(problem.graph.nodes[at(node)].name);
    out["stages"].push_back({{"name", stage_name(problem, best.stages[s])},
                             {"nodes", nodes},
                             {"devices", group_of(degrees, static_cast<int>(s) % degrees.pipe)},
                             {"micro_batch", degrees.samples * degrees.data}});
  }
  std::vector<double> peak(problem.cluster.devices.size(), 0);
  for (int actor = 0; actor < degrees.pipe; ++actor)
    for (const int device : group_of(degrees, actor)) peak[at(device)] = best.peak_bytes[at(actor)];
  out["bottleneck"] = best.seconds;
  out.update(json_of(best));
  out["peak_bytes"] = peak;
  out["search_seconds"] = search_seconds;
  out["optimal"] = false;
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

std::string text_of(const PlanProblem& problem, const DegreesPlan& plan, double search_seconds) {
  const DegreesResult& best = plan.results[0];
  const Degrees& d = best.degrees;
  const auto line = [&](const char* what, double seconds) {
    return concat(what, " ", time_text(seconds, true), " (", fixed(100 * seconds / best.seconds, 1), " %)");
  };
  return concat(problem.graph.name, " on ", problem.cluster.name, ", by degrees in ", time_text(search_seconds, true), ": ",
                plan.results.size(), " of ", plan.considered, " candidates simulated\n\n", text(d), "\nA step of ", step_samples(problem),
                " samples in ", d.microbatches, " micro-batches of ", d.samples, " on each replica takes ", time_text(best.seconds, true),
                ":\n",
                join({line("compute", best.compute), line("bubble", best.bubble), line("exposed communication", best.exposed)}, ", "),
                ".\nThe fullest device holds ", bytes_text(best.memory), ".\n");
}

}  // namespace

void print_degrees(const PlanArguments& arguments, const PlanProblem& problem, const std::string& dtype) {
  if (!arguments.out.empty())
    throw Error("--out and --planner degrees", {}, "train takes degrees by --mesh and its other flags, not by a plan");
  DegreesOptions options;
  options.states = arguments.states.empty() ? states_of(dtype) : parse_states(arguments.states);
  options.parameter_bytes = dtype == "f64" ? 8 : 4;
  if (!arguments.only.empty()) options.only = parse_degrees_limits(arguments.only);
  options.every = arguments.every;
  const auto begin = std::chrono::steady_clock::now();
  const DegreesPlan plan = plan_degrees(problem, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (!arguments.json) {
    std::printf("%s", text_of(problem, plan, seconds).c_str());
    if (arguments.explain) std::printf("\n%s", alternatives_text(plan).c_str());
    return;
  }
  ordered_json out = json_of(problem, plan, seconds);
  if (arguments.explain) {
    out["alternatives"] = ordered_json::array();
    for (const DegreesResult& result : plan.results) out["alternatives"].push_back(json_of(result));
  }
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

}  // namespace penstock
