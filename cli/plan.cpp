// penstock plan
#include "cli/plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <climits>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/numbers.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "config/plan_model.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "cost/time_limit.h"
#include "penstock/error.h"
#include "penstock/timeline.h"
#include "planners/planner_list.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "simulate/roofline.h"

namespace penstock {
namespace {

constexpr int kMostNodes = 2000;
constexpr std::size_t kMostActivities = 20000;  // of a timeline that a plan's file holds

bool is_config(const PlanArguments& arguments) {
  return arguments.what.ends_with(".toml") || arguments.models->contains(arguments.what);
}

Config config_of(const PlanArguments& arguments) {
  std::vector<Override> overrides;
  const bool named = !arguments.what.ends_with(".toml");
  if (named) overrides.push_back({"model.name", arguments.what, arguments.what});
  // A plan says how many micro-batches there are: what a run without one would take need not divide the batch.
  if (arguments.cluster != "local" || !arguments.micro_batches.empty())
    overrides.push_back({"pipeline.microbatches", "1", "--micro-batches"});
  for (const std::string& setting : arguments.settings) overrides.push_back(parse_override(setting));
  if (arguments.batch > 0) overrides.push_back({"train.batch", std::to_string(arguments.batch), "--batch"});
  if (arguments.devices) overrides.push_back({"pipeline.actors", std::to_string(*arguments.devices), "--devices"});
  return load_config(named ? "" : arguments.what, overrides, *arguments.models);
}

// Outputs whose transfers were measured as times need no bandwidth.
bool needs_bandwidth(const PlanGraph& graph) {
  return std::any_of(graph.edges.begin(), graph.edges.end(),
                     [&](const PlanEdge& edge) { return graph.nodes[static_cast<std::size_t>(edge.from)].outputs.empty(); });
}

ClusterSpec cluster_of(const PlanArguments& arguments, const PlanGraph& graph) {
  const std::pair<const char*, bool> flags[] = {{"--devices", arguments.devices.has_value()},
                                                {"--bandwidth", arguments.bandwidth.has_value()},
                                                {"--latency", arguments.latency.has_value()}};
  ClusterSpec cluster;
  if (!arguments.cluster.empty()) {
    for (const auto& [flag, is_given] : flags)
      if (is_given) throw Error(concat(flag, " and --cluster ", arguments.cluster), {}, "the file says what the cluster is");
    cluster = parse_cluster(read_file(arguments.cluster), arguments.cluster);
    if (arguments.memory)
      for (ClusterDevice& device : cluster.devices) device.memory = *arguments.memory;
  } else {
    const int devices = arguments.devices.value_or(graph.devices);
    if (!arguments.devices && devices == 0)
      throw Error(concat("for how many devices is ", arguments.what, " planned?"), {}, "--devices N, or --cluster FILE");
    const double bandwidth = arguments.bandwidth.value_or(graph.bandwidth);
    if (devices > 1 && !arguments.bandwidth && bandwidth == 0 && needs_bandwidth(graph))
      throw Error("what do links between the devices carry?", {}, "--bandwidth BYTES-PER-SECOND, or --cluster FILE");
    const double unlimited = ClusterLink().bandwidth;
    cluster = uniform_cluster(devices, arguments.bandwidth || bandwidth > 0 ? bandwidth : unlimited, arguments.latency.value_or(0),
                              arguments.memory.value_or(graph.memory > 0 ? graph.memory : ClusterDevice().memory));
    cluster.cpus = graph.cpus;
  }
  if (arguments.cpus) cluster.cpus = *arguments.cpus;
  return cluster;
}

// "1,2,4"
std::vector<int> sizes_in(const std::string& text) {
  std::vector<int> sizes;
  for (const std::string& part : split(text, ',')) {
    int size = 0;
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), size);
    if (failure != std::errc() || end != part.data() + part.size() || size < 1)
      throw Error(concat("--micro-batches ", text, ": ", quote(part), " is no size"), {}, "sizes in samples, by commas: 1,2,4");
    sizes.push_back(size);
  }
  return sizes;
}

// Powers of two that divide the batch, the smallest first: no share of a micro-batch is smaller than one that has costs.
std::vector<int> published_sizes(const Config& config) {
  constexpr int kMost = 128;
  std::vector<int> sizes;
  for (int size = 1; size <= kMost && config.train.batch % size == 0; size *= 2) sizes.push_back(size);
  return sizes;
}

std::vector<int> sizes_of(const PlanArguments& arguments, const Config& config, int devices) {
  check_sizes(config, arguments.micro_batches);
  std::vector<int> sizes = arguments.micro_batches;
  if (sizes.empty()) sizes = arguments.cluster == "local" ? planning_sizes(config, devices) : published_sizes(config);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// A configuration's model by published figures.
PlanProblem config_problem(const PlanArguments& arguments, const Config& config, const NodeGroups& groups) {
  PlanProblem problem;
  problem.replicas = !arguments.no_replicas;
  problem.cluster = cluster_of(arguments, {});
  const auto devices = static_cast<int>(problem.cluster.devices.size());
  problem.graph = model_graph(config, *arguments.models, groups, sizes_of(arguments, config, devices),
                              published_devices().device(arguments.device.value_or(kAssumedDevice)));
  return problem;
}

// Why train cannot run it; "": it can. Micro-batches that replicas cannot share count in a plan as if they could.
std::string cannot_run(const Candidate& candidate, const Config& config) {
  if (candidate.degrees && candidate.degrees->results[0].degrees.by_block) return kNotByBlock;
  try {
    check_runnable(candidate.file, config.train.batch);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// Degrees of a configuration's model, of all its nodes. Micro-batches are those of one replica.
struct DegreesProblem {
  NodeGroups groups;
  PlanProblem problem;
};

DegreesProblem degrees_problem(PlanArguments arguments, const Config& config) {
  if (arguments.micro_batches.empty())
    for (const int size : {1, 2, 4})
      if (config.train.batch % size == 0) arguments.micro_batches.push_back(size);
  DegreesProblem out{planning_nodes(config, *arguments.models, kMostNodes), {}};
  out.problem = config_problem(arguments, config, out.groups);
  return out;
}

Candidate plan_degrees_of(const PlanArguments& arguments, const Config& config, const DegreesProblem& of, const DegreesOptions& options) {
  Candidate out = plan_by_degrees(of.problem, options);
  take_model_nodes(config, *arguments.models, of.groups, out.file);
  return out;
}

// The best first: what can be run before what cannot.
std::vector<Candidate> plan_config(const PlanArguments& arguments, const Config& config) {
  const NodeGroups groups = planning_nodes(config, *arguments.models, arguments.nodes);
  Candidate stages{.problem = config_problem(arguments, config, groups), .plan = {}, .file = {}};
  PlanOptions options = arguments.options;
  std::vector<Candidate> found;
  if (arguments.planner == "best") {
    const DegreesProblem of = degrees_problem(arguments, config);
    DegreesOptions degrees = degrees_options(arguments, config.train.dtype);
    keep_to_runnable("--planner best", degrees.only);
    TimeLimit limit(options.seconds, options.clock);
    degrees.seconds = options.seconds / 2;
    try {
      found.push_back(plan_degrees_of(arguments, config, of, degrees));
      found[0].file.planner = "best (degrees)";
    } catch (const Error&) {
      // No equal groups fit the batch, or the memory.
    }
    options.seconds = limit.left();
  }
  try {
    stages.plan = make_plan(arguments.planner, stages.problem, options);
    stages.file = model_plan(config, *arguments.models, groups, stages.problem, stages.plan);
    found.push_back(std::move(stages));
  } catch (const Error&) {
    if (found.empty()) throw;
  }
  const auto better = [&](const Candidate& a, const Candidate& b) {
    return std::pair(!cannot_run(a, config).empty(), a.file.predicted_time) <
           std::pair(!cannot_run(b, config).empty(), b.file.predicted_time);
  };
  std::stable_sort(found.begin(), found.end(), better);
  return found;
}

// A word that is no file is more likely to be meant as a model's name.
void check_exists(const PlanArguments& arguments) {
  const std::string& what = arguments.what;
  std::error_code none;
  if (std::filesystem::exists(what, none) || what.find_first_of("./") != std::string::npos) return;
  std::vector<std::string> names;
  for (const auto& [name, ignored] : *arguments.models) names.push_back(name);
  const std::string near = nearest(what, names);
  throw Error(concat(quote(what), " is neither a file nor a model"), {"models: " + join(names, ", ")},
              near.empty() ? "" : concat("did you mean ", near, "?"));
}

PlanProblem graph_problem(const PlanArguments& arguments) {
  check_exists(arguments);
  if (!arguments.settings.empty()) throw Error("--set is for configurations", {}, concat(arguments.what, " is taken as a graph"));
  PlanProblem problem;
  problem.graph = parse_plan_graph(read_file(arguments.what), arguments.what, arguments.device.value_or(kAssumedDevice));
  problem.cluster = cluster_of(arguments, problem.graph);
  problem.samples = arguments.batch;
  problem.batches = arguments.micro_batches;
  problem.replicas = !arguments.no_replicas;
  return problem;
}

Candidate plan_graph(const PlanArguments& arguments) {
  Candidate out;
  out.problem = graph_problem(arguments);
  out.plan = make_plan(arguments.planner, out.problem, arguments.options);
  out.file = plan_file_of(out.problem, out.plan);
  return out;
}

// The figures that neither flags nor files give, and what is taken for them.
std::vector<std::string> assumed(const PlanArguments& arguments, const PlanProblem& problem) {
  std::vector<std::string> out;
  if (arguments.cluster == "local") return out;
  if (is_config(arguments) && !arguments.device) out.push_back(concat("times of a published ", kAssumedDevice, " (--device)"));
  const ClusterSpec& cluster = problem.cluster;
  if (arguments.cluster.empty() && cluster.devices.size() > 1 && std::isinf(cluster.levels[0].link.bandwidth))
    out.push_back("links without limit (--bandwidth)");
  if (std::isinf(weakest(cluster).memory)) out.push_back("memory without limit (--memory)");
  if (arguments.micro_batches.empty())
    out.push_back(concat("micro-batches of ", join(allowed_batches(problem), ", ", [](int size) { return std::to_string(size); }),
                         " samples (--micro-batches)"));
  return out;
}

void add_timeline(Candidate& candidate) {
  if (candidate.degrees) return;
  const Timeline timeline = timeline_of(candidate.problem, candidate.plan);
  if (timeline.activities.size() <= kMostActivities) candidate.file.timeline = concat("{\"penstock\":", timeline_data(timeline), "}");
}

std::vector<Candidate> candidates_of(const PlanArguments& arguments) {
  if (!is_config(arguments)) {
    if (arguments.cluster == "local")
      throw Error(concat("--cluster local measures a configuration's model; ", arguments.what, " is taken as a graph"), {},
                  "give CONFIG.toml or a model's name, or --devices and --bandwidth");
    std::vector<Candidate> out = {plan_graph(arguments)};
    add_timeline(out[0]);
    return out;
  }
  const Config config = config_of(arguments);
  if (arguments.cluster != "local") {
    std::vector<Candidate> out = plan_config(arguments, config);
    add_timeline(out[0]);
    return out;
  }
  PlanArguments local = arguments;
  local.micro_batches = sizes_of(arguments, config, static_cast<int>(config.pipeline.actors));
  return plan_locally(local, config);
}

std::string seconds_text(double seconds) {
  return time_text(seconds, true);
}

// How much longer than the fastest plan it may take, as a share; infinite: nothing is known.
double gap_of(const PlanFile& plan) {
  return plan.lower_bound > 0 ? plan.predicted_time / plan.lower_bound - 1 : std::numeric_limits<double>::infinity();
}

std::string text_of(const PlanFile& plan, const PlanArguments& arguments) {
  std::vector<std::vector<std::string>> rows;
  for (const PlanFile::Stage& stage : plan.stages)
    rows.push_back({stage.name, std::to_string(stage.nodes.size()), devices_text(plan, stage), std::to_string(stage.micro_batch),
                    seconds_text(stage.forward), seconds_text(stage.backward), bytes_text(stage.bytes)});
  const std::string bound = plan.lower_bound > 0 ? concat("; no plan takes less than ", seconds_text(plan.lower_bound),
                                                          ", which leaves a gap of ", fixed(100 * gap_of(plan), 1), " %")
                                                 : "";
  // The others end by themselves.
  const bool until = arguments.planner == "best" || arguments.planner == "exact";
  const std::string limit = until ? concat(" of at most ", seconds_text(arguments.options.seconds)) : "";
  return concat(plan.model, " on ", plan.cluster, ", by ", plan.planner, " in ", seconds_text(plan.search_seconds), limit, "\n\n",
                table({"stage", "nodes", "devices", "micro-batch", "forward", "backward", "memory"}, rows), "\nA step of ",
                counted(plan.samples, "sample"), " in ", counted(plan.microbatches, "micro-batch"), " takes ",
                seconds_text(plan.predicted_time), bound, ".\nThe planner's own objective: ", seconds_text(plan.bottleneck),
                plan.optimal ? ", proven the least" : "", ".\n");
}

nlohmann::ordered_json json_of(const PlanExplanation& explanation) {
  nlohmann::ordered_json out = {{"bottleneck", explanation.bottleneck},
                                {"detail", explanation.detail},
                                {"planned_time", explanation.planned_time},
                                {"next", nullptr}};
  if (!explanation.next.empty()) out["next"] = {{"planner", explanation.next}, {"predicted_time", explanation.next_time}};
  out["changes"] = nlohmann::ordered_json::array();
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
void add_figures(const Candidate& candidate, nlohmann::ordered_json& out) {
  const PlanFigures figures = figures_of(candidate.problem, candidate.plan.stages);
  out["figures"] = out["links"] = nlohmann::ordered_json::array();
  for (std::size_t s = 0; s < figures.stages.size(); ++s) {
    const PlanStage& stage = candidate.plan.stages[s];
    const StageFigures& of = figures.stages[s];
    nlohmann::ordered_json ways = nlohmann::ordered_json::array();
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

void check_numbers(const PlanArguments& arguments) {
  const std::pair<const char*, const std::optional<double>&> positive[] = {{"--bandwidth", arguments.bandwidth},
                                                                           {"--memory-limit", arguments.memory}};
  for (const auto& [flag, value] : positive)
    if (value && !(*value > 0)) throw Error(concat(flag, " ", number(*value), ": it must be above 0"));
  if (arguments.latency && !(*arguments.latency >= 0 && std::isfinite(*arguments.latency)))
    throw Error(concat("--latency ", number(*arguments.latency), ": it must be a finite number, 0 or above"));
  if (!(arguments.options.seconds > 0)) throw Error(concat("--seconds ", number(arguments.options.seconds), ": it must be above 0"));
}

// The lines above a plan: why train cannot run it, and what was assumed.
std::string head_of(const std::vector<std::string>& assumptions, const std::string& why_not) {
  std::string out;
  if (!why_not.empty()) out += concat("train cannot run this plan: ", why_not, "\n");
  if (!assumptions.empty()) out += concat("Assumed: ", join(assumptions, "; "), ".\n");
  return out.empty() ? out : out + "\n";
}

Candidate plan_degrees_only(const PlanArguments& arguments) {
  if (!is_config(arguments)) return plan_by_degrees(graph_problem(arguments), degrees_options(arguments, "f32"));
  const Config config = config_of(arguments);
  DegreesOptions options = degrees_options(arguments, config.train.dtype);
  if (!arguments.out.empty()) keep_to_runnable("--out", options.only);
  return plan_degrees_of(arguments, config, degrees_problem(arguments, config), options);
}

void degrees_command(const PlanArguments& arguments) {
  if (arguments.cluster == "local")
    throw Error("--cluster local and --planner degrees", {}, "degrees are for a cluster's FILE, or --devices");
  const Candidate found = plan_degrees_only(arguments);
  if (!arguments.out.empty()) write_file(arguments.out, print(found.file));
  const std::string why_not = is_config(arguments) ? cannot_run(found, config_of(arguments)) : "";
  const std::vector<std::string> assumptions = assumed(arguments, found.problem);
  if (!arguments.json) std::printf("%s", head_of(assumptions, why_not).c_str());
  print_degrees(arguments, found, assumptions, why_not);
}

void plan_command(const PlanArguments& arguments) {
  check_numbers(arguments);
  check_planner(arguments.planner, {"degrees"});  // ahead of anything that is measured for it
  if (!arguments.only.empty() && arguments.planner != "degrees") throw Error("--only is of --planner degrees");
  if (arguments.planner == "degrees") return degrees_command(arguments);
  std::vector<Candidate> found = candidates_of(arguments);
  const Candidate best = std::move(found.front());
  found.erase(found.begin());
  std::optional<PlanExplanation> explanation;
  if (arguments.explain) explanation = explain(arguments, best, found, is_config(arguments) ? config_of(arguments).train.dtype : "f32");
  const std::string why_not = is_config(arguments) && arguments.cluster != "local" ? cannot_run(best, config_of(arguments)) : "";
  const std::vector<std::string> assumptions = assumed(arguments, best.problem);
  if (!arguments.out.empty()) write_file(arguments.out, print(best.file));
  if (arguments.json) {
    nlohmann::ordered_json out = nlohmann::ordered_json::parse(print(best.file, false));
    if (best.file.lower_bound > 0) out["gap"] = gap_of(best.file);
    out["time_limit"] = arguments.options.seconds;
    out["assumed"] = assumptions;
    out["cannot_run"] = why_not;
    if (!best.degrees) add_figures(best, out);
    if (best.degrees) out["degrees"] = text(best.degrees->results[0].degrees);
    if (explanation) out["explanation"] = json_of(*explanation);
    print_json(out);
    return;
  }
  std::printf("%s%s", head_of(assumptions, why_not).c_str(), text_of(best.file, arguments).c_str());
  if (best.degrees) std::printf("Degrees: %s\n", text(best.degrees->results[0].degrees).c_str());
  if (explanation) std::printf("\n%s", text_of(*explanation, best.file.predicted_time).c_str());
}

std::string planner_lines() {
  std::string out = "Planners:\n";
  for (const PlannerInfo& planner : planners()) out += concat("  ", planner.name, ": ", planner.summary, "\n");
  return out + "  degrees: pipeline, data and sharding degrees, chunks and schedule of equal groups (docs/planning.md)\n";
}

}  // namespace

void add_plan(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command = app.add_subcommand("plan", "finds stages, devices, micro-batches and a schedule for a model and a cluster");
  const auto arguments = std::make_shared<PlanArguments>();
  arguments->models = &models;
  command
      ->add_option("graph-or-config", arguments->what,
                   "a graph with costs (PipeDream, Piper, dnn-partitioning, GraphPipe, Penstock), CONFIG.toml "
                   "or a model's name")
      ->required()
      ->type_name("GRAPH|CONFIG");
  command->add_option("--cluster", arguments->cluster, "FILE.toml, or local: this machine, measured, with pipeline.actors threads");
  command->add_option("--devices", arguments->devices, "equal devices [as the graph's file says]");
  command->add_option("--bandwidth", arguments->bandwidth, "of every link, bytes per second");
  command->add_option("--latency", arguments->latency, "of every link, seconds [0]");
  command->add_option("--memory-limit,--memory", arguments->memory, "of every device, bytes [unlimited]");
  command->add_option("--cpus", arguments->cpus, "host processors that may hold stages [as the graph's file says]")
      ->check(CLI::Range(0, 100'000));
  command->add_option("--planner", arguments->planner, "which one; see below")->capture_default_str();
  command->add_option("--seconds", arguments->options.seconds, "of searching, at most")->capture_default_str();
  command->add_option("--seed", arguments->options.seed, "of what is random")->capture_default_str();
  command->add_flag("--straight", arguments->options.straight, "pipedream: one device for each stage");
  command->add_flag("--ignore-transfers", arguments->options.ignore_transfers, "pipedream: without activations' transfers");
  command->add_flag("--no-replicas", arguments->no_replicas, "one device for each stage");
  command
      ->add_option_function<std::string>(
          "--micro-batches", [arguments](const std::string& text) { arguments->micro_batches = sizes_in(text); },
          "sizes to choose from, in samples: 1,2,4")
      ->type_name("SIZES");
  command->add_option("--batch", arguments->batch, "samples of a step")->check(CLI::Range(1, INT_MAX));
  command->add_option("--device", arguments->device, "published figures that time a configuration, or a graph without times [v100]");
  command->add_option("--set", arguments->settings, "overrides one key of a configuration: --set model.width=256")
      ->type_name("KEY=VALUE")
      ->take_all()
      ->expected(1, -1);
  command->add_option("--nodes", arguments->nodes, "at most so many of a configuration's model")
      ->check(CLI::Range(1, kMostNodes))
      ->capture_default_str();
  command->add_option("--candidates", arguments->candidates, "local: so many plans are measured")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command->add_option("--rounds", arguments->rounds, "local: measured steps of each program")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command->add_option("--only", arguments->only, "degrees: fixes some, pipe=8,zero=3,schedule=zeropp")->type_name("KEY=VALUE,...");
  command
      ->add_option("--states", arguments->states, "degrees: bytes of a parameter, of its gradient and of the optimiser's state [by dtype]")
      ->type_name("P+G+O");
  command->add_flag("--every", arguments->every, "degrees: simulates also what cannot be the fastest");
  command->add_flag("--explain", arguments->explain, "the bottleneck, the next best plan, and what a larger cluster would give");
  command->add_option("--out", arguments->out, "write the plan, for train --plan and show")->type_name("FILE.json");
  command->add_flag("--json", arguments->json, "one JSON object");
  command->footer(planner_lines() +
                  "Example:\n  penstock plan examples/gpt.toml --cluster local --out plan.json --explain\n"
                  "  penstock train examples/gpt.toml --plan plan.json --out runs/planned\n"
                  "  penstock plan examples/graphs/two-encoders.json --devices 4 --bandwidth 1e9 --planner pipedream");
  command->callback([arguments] { plan_command(*arguments); });
}

}  // namespace penstock
