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

#include "base/text.h"
#include "cli/commands.h"
#include "penstock/error.h"
#include "plan/evaluate.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "runtime/plan_model.h"
#include "simulate/roofline.h"
#include "simulate/timeline.h"

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
  for (const std::string& setting : arguments.settings) overrides.push_back(parse_override(setting));
  if (arguments.batch > 0) overrides.push_back({"train.batch", std::to_string(arguments.batch), "--batch"});
  if (arguments.devices) overrides.push_back({"pipeline.actors", std::to_string(*arguments.devices), "--devices"});
  return load_config(named ? "" : arguments.what, overrides, *arguments.models);
}

// Outputs whose transfers were measured as times need no bandwidth.
bool needs_bandwidth(const PlanGraph& graph) {
  return std::any_of(graph.nodes.begin(), graph.nodes.end(), [](const PlanNode& node) { return node.transfer_seconds < 0; });
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

std::vector<int> sizes_of(const PlanArguments& arguments, const Config& config, int devices) {
  check_sizes(config, arguments.micro_batches);
  std::vector<int> sizes = arguments.micro_batches.empty() ? planning_sizes(config, devices) : arguments.micro_batches;
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
  problem.graph =
      model_graph(config, *arguments.models, groups, sizes_of(arguments, config, devices), published_devices().device(arguments.device));
  return problem;
}

Candidate plan_config(const PlanArguments& arguments, const Config& config) {
  Candidate out;
  const NodeGroups groups = planning_nodes(config, *arguments.models, arguments.nodes);
  out.problem = config_problem(arguments, config, groups);
  out.plan = make_plan(arguments.planner, out.problem, arguments.options);
  out.file = model_plan(config, *arguments.models, groups, out.problem, out.plan);
  return out;
}

// A word that is no file is more likely to be meant as a model's name.
void check_exists(const PlanArguments& arguments) {
  const std::string& what = arguments.what;
  if (std::filesystem::exists(what) || what.find_first_of("./") != std::string::npos) return;
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
  problem.graph = parse_plan_graph(read_file(arguments.what), arguments.what, arguments.device);
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

// Micro-batches that replicas cannot share count in a plan as if they could.
void note_if_not_runnable(const Candidate& candidate, const Config& config) {
  try {
    check_runnable(candidate.file, config.train.batch);
  } catch (const Error& error) {
    std::fprintf(stderr, "note: train cannot run this plan: %s\n", error.what());
  }
}

void add_timeline(Candidate& candidate) {
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
    std::vector<Candidate> out = {plan_config(arguments, config)};
    note_if_not_runnable(out[0], config);
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
                table({"stage", "nodes", "devices", "micro-batch", "forward", "backward", "memory"}, rows), "\nA step of ", plan.samples,
                " samples in ", plan.microbatches, " micro-batches takes ", seconds_text(plan.predicted_time), bound,
                ".\nThe planner's own objective: ", seconds_text(plan.bottleneck), plan.optimal ? ", proven the least" : "", ".\n");
}

nlohmann::ordered_json json_of(const PlanExplanation& explanation) {
  nlohmann::ordered_json out = {{"bottleneck", explanation.bottleneck}, {"detail", explanation.detail}, {"next", nullptr}};
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

void check_numbers(const PlanArguments& arguments) {
  const std::pair<const char*, const std::optional<double>&> positive[] = {{"--bandwidth", arguments.bandwidth},
                                                                           {"--memory", arguments.memory}};
  for (const auto& [flag, value] : positive)
    if (value && !(*value > 0)) throw Error(concat(flag, " ", number(*value), ": it must be above 0"));
  if (arguments.latency && !(*arguments.latency >= 0 && std::isfinite(*arguments.latency)))
    throw Error(concat("--latency ", number(*arguments.latency), ": it must be a finite number, 0 or above"));
  if (!(arguments.options.seconds > 0)) throw Error(concat("--seconds ", number(arguments.options.seconds), ": it must be above 0"));
}

// Micro-batches are those of one replica.
void degrees_command(PlanArguments arguments) {
  if (arguments.cluster == "local")
    throw Error("--cluster local and --planner degrees", {}, "degrees are for a cluster's FILE, or --devices");
  if (!is_config(arguments)) return print_degrees(arguments, graph_problem(arguments), "f32");
  const Config config = config_of(arguments);
  if (arguments.micro_batches.empty())
    for (const int size : {1, 2, 4})
      if (config.train.batch % size == 0) arguments.micro_batches.push_back(size);
  const NodeGroups groups = planning_nodes(config, *arguments.models, kMostNodes);
  print_degrees(arguments, config_problem(arguments, config, groups), config.train.dtype);
}

// Ahead of anything that is measured for it.
void check_planner(const std::string& name) {
  std::vector<std::string> names;
  for (const PlannerInfo& planner : planners()) names.push_back(planner.name);
  names.push_back("degrees");
  if (std::find(names.begin(), names.end(), name) != names.end()) return;
  const std::string near = nearest(name, names);
  throw Error(concat("there is no planner ", quote(name)), {"planners: " + join(names, ", ")},
              near.empty() ? "" : concat("did you mean ", near, "?"));
}

void plan_command(const PlanArguments& arguments) {
  check_numbers(arguments);
  check_planner(arguments.planner);
  if (!arguments.only.empty() && arguments.planner != "degrees") throw Error("--only is of --planner degrees");
  if (arguments.planner == "degrees") return degrees_command(arguments);
  std::vector<Candidate> found = candidates_of(arguments);
  const Candidate best = std::move(found.front());
  found.erase(found.begin());
  std::optional<PlanExplanation> explanation;
  if (arguments.explain) explanation = explain(arguments, best, found);
  if (!arguments.out.empty()) write_file(arguments.out, print(best.file));
  if (arguments.json) {
    nlohmann::ordered_json out = nlohmann::ordered_json::parse(print(best.file, false));
    if (best.file.lower_bound > 0) out["gap"] = gap_of(best.file);
    out["time_limit"] = arguments.options.seconds;
    if (explanation) out["explanation"] = json_of(*explanation);
    std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return;
  }
  std::printf("%s", text_of(best.file, arguments).c_str());
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
  command->add_option("--memory", arguments->memory, "of every device, bytes [unlimited]");
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
  command->add_option("--device", arguments->device, "published figures that time a configuration, or a graph without times")
      ->capture_default_str();
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
                  "  penstock train examples/gpt.toml --plan plan.json\n"
                  "  penstock plan graph.txt --devices 4 --bandwidth 1e9 --planner pipedream");
  command->callback([arguments] { plan_command(*arguments); });
}

}  // namespace penstock
