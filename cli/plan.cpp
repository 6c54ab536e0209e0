// SPDX-License-Identifier: Apache-2.0
// penstock plan
#include "cli/plan.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "base/papers.h"
#include "base/text.h"
#include "base/words.h"
#include "cli/clusters.h"
#include "cli/command_tree.h"
#include "cli/commands.h"
#include "cli/shared_options.h"
#include "cost/cost_model.h"
#include "cost/evaluate.h"
#include "cost/figures_for.h"
#include "penstock/error.h"
#include "profile/plan_local.h"
#include "profile/variants.h"
#include "report/plan_page.h"

namespace penstock {

bool is_config(const PlanArguments& arguments) {
  return names_config(arguments.what, *arguments.models) || arguments.models->contains(arguments.what);
}

Config load_planned(const PlanArguments& arguments, std::vector<Override> ahead, const std::vector<Override>& behind) {
  std::vector<Override> overrides = std::move(ahead);
  const bool named = !names_config(arguments.what, *arguments.models);
  if (named) overrides.insert(overrides.begin(), {"model.name", arguments.what, arguments.what});
  for (const std::string& setting : arguments.settings) overrides.push_back(parse_override(setting));
  if (!arguments.device.empty()) overrides.push_back({"run.device", arguments.device, "--device"});
  if (arguments.batch > 0) overrides.push_back({"train.batch", std::to_string(arguments.batch), "--batch"});
  overrides.insert(overrides.end(), behind.begin(), behind.end());
  return load_config(named ? "" : arguments.what, overrides, *arguments.models);
}

void say_progress(const PlanArguments& arguments, const std::string& text) {
  arguments.log.say("plan: " + text);
}

namespace {

Config config_of(const PlanArguments& arguments) {
  std::vector<Override> ahead, behind;
  // A plan says how many micro-batches there are: what a run without one would take need not divide the batch.
  if (arguments.cluster != "local" || !arguments.micro_batches.empty())
    ahead.push_back({"pipeline.microbatches", "1", "--microbatch-sizes"});
  if (arguments.devices) behind.push_back({"pipeline.actors", std::to_string(*arguments.devices), "--devices"});
  return load_planned(arguments, std::move(ahead), behind);
}

// Outputs whose transfers were measured as times need no bandwidth.
bool needs_bandwidth(const PlanGraph& graph) {
  return std::any_of(graph.edges.begin(), graph.edges.end(),
                     [&](const PlanEdge& edge) { return graph.nodes[static_cast<std::size_t>(edge.from)].outputs.empty(); });
}

}  // namespace

namespace {

// A word that is no file is more likely meant as "local", or as the name of one.
void check_is_file(const std::string& cluster) {
  std::error_code none;
  if (std::filesystem::exists(cluster, none) || cluster.find_first_of("./") != std::string::npos) return;
  const std::string near = did_you_mean(cluster, {"local"});
  throw Error(concat("--cluster ", quote(cluster), ": there is no such file"), {},
              near.empty() ? "FILE.toml, as in examples/clusters; local, which measures this machine; or --devices N --bandwidth B" : near);
}

}  // namespace

ClusterSpec cluster_of(const PlanArguments& arguments, const PlanGraph& graph) {
  const std::pair<const char*, bool> flags[] = {{"--devices", arguments.devices.has_value()},
                                                {"--bandwidth", arguments.bandwidth.has_value()},
                                                {"--latency", arguments.latency.has_value()}};
  ClusterSpec cluster;
  if (!arguments.cluster.empty()) {
    check_is_file(arguments.cluster);
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
  }
  return cluster;
}

namespace {

// "1,2,4"
std::vector<int> sizes_in(const std::string& text) {
  std::vector<int> sizes;
  for (const std::string& part : split(text, ',')) {
    sizes.push_back(parse_number<int>(part).value_or(0));
    if (sizes.back() < 1)
      throw Error(concat("--microbatch-sizes ", text, ": ", quote(part), " is no size"), {}, "sizes in samples, by commas: 1,2,4");
  }
  return sizes;
}

// A word that is no file is more likely to be meant as a model's name.
void check_exists(const PlanArguments& arguments) {
  const std::string& what = arguments.what;
  std::error_code none;
  if (std::filesystem::exists(what, none) || what.find_first_of("./") != std::string::npos) return;
  std::vector<std::string> names;
  for (const auto& [name, ignored] : *arguments.models) names.push_back(name);
  throw Error(concat(quote(what), " is neither a file nor a model"), {"models: " + join(names, ", ")}, hint_for(what, names));
}

PlanProblem graph_problem(const PlanArguments& arguments) {
  check_exists(arguments);
  if (!arguments.settings.empty()) throw Error("--set is for configurations", {}, concat(arguments.what, " is taken as a graph"));
  PlanProblem problem;
  const ClusterSpec named = arguments.cluster.empty() ? ClusterSpec() : cluster_of(arguments, {});
  problem.graph = parse_plan_graph(read_file(arguments.what), arguments.what, figures_for(named, arguments.figures));
  problem.cluster = cluster_of(arguments, problem.graph);
  problem.samples = arguments.batch;
  problem.batches = arguments.micro_batches;
  problem.replicas = !arguments.no_replicas;
  return problem;
}

// The figures that neither flags nor files give, and what is taken for them.
std::vector<std::string> assumed(const PlanArguments& arguments, const PlanProblem& problem) {
  std::vector<std::string> out;
  if (arguments.cluster == "local") return out;
  const ClusterSpec& cluster = problem.cluster;
  if (is_config(arguments) && arguments.figures.empty() && cluster.published.empty())
    out.push_back(concat("times of a published ", figures_for(cluster), " (--figures)"));
  if (arguments.cluster.empty() && cluster.devices.size() > 1 && std::isinf(cluster.levels[0].link.bandwidth))
    out.push_back("links without limit (--bandwidth)");
  if (std::isinf(weakest(cluster).memory)) out.push_back("memory without limit (--memory)");
  if (arguments.micro_batches.empty())
    out.push_back(concat("micro-batches of ", join(allowed_batches(problem), ", ", [](int size) { return std::to_string(size); }),
                         " samples (--microbatch-sizes)"));
  return out;
}

StateBytes parse_states(const std::string& text) {
  std::vector<double> bytes;
  for (const std::string& part : split(text, '+')) bytes.push_back(parse_number<double>(part).value_or(-1));
  const auto is_size = [](double number) { return number >= 0 && number <= 1024; };
  if (bytes.size() != 3 || !std::ranges::all_of(bytes, is_size) || bytes[0] == 0 || bytes[1] == 0)
    throw Error(concat("--states ", text, ": not three numbers of bytes"), {}, "of a parameter, its gradient, the optimiser: 2+2+12");
  return {bytes[0], bytes[1], bytes[2]};
}

// dtype: what the model computes in.
PlanOptions options_of(const PlanArguments& arguments, const std::string& dtype) {
  PlanOptions options = arguments.options;
  options.degrees.states = arguments.states.empty() ? states_of(dtype) : parse_states(arguments.states);
  options.degrees.parameter_bytes = dtype == "f64" ? 8 : 4;
  if (!arguments.only.empty()) options.degrees.only = parse_degrees_limits(arguments.only);
  return options;
}

void keep_to_runnable(DegreesLimits& only) {
  if (only.by_block == 1) throw Error("--out and --only by-block=1", {kNotByBlock}, "leave out --out to see what it would take");
  only.by_block = 0;
}

std::vector<PlannedModel> plan_config(const PlanArguments& arguments, const Config& config, PlanOptions options) {
  if (arguments.cluster == "local") {
    LocalPlanning local{.planner = arguments.planner, .options = std::move(options), .sizes = {}, .nodes = arguments.nodes};
    local.sizes = checked_sizes(config, arguments.micro_batches, planning_sizes(config, config.pipeline.table.actors));
    local.memory = arguments.memory;
    local.candidates = arguments.candidates;
    local.rounds = arguments.rounds;
    local.progress = [&arguments](const std::string& text) { say_progress(arguments, text); };
    return plan_locally(workbench_of(config, *arguments.models), local);
  }
  if (!arguments.out.empty() && planner_named(arguments.planner).equal_groups) keep_to_runnable(options.degrees.only);
  ModelPlanning planning{.planner = arguments.planner, .options = std::move(options), .cluster = cluster_of(arguments, {})};
  planning.sizes = arguments.micro_batches;
  planning.replicas = !arguments.no_replicas;
  planning.nodes = arguments.nodes;
  planning.device = arguments.figures;
  return plan_model(config, *arguments.models, planning);
}

PlannedModel plan_graph(const PlanArguments& arguments, const PlanOptions& options) {
  if (arguments.cluster == "local")
    throw Error(concat("--cluster local measures a configuration's model; ", arguments.what, " is taken as a graph"), {},
                "give CONFIG.toml or a model's name, or --devices and --bandwidth");
  PlannedModel out;
  out.problem = graph_problem(arguments);
  out.plan = make_plan(arguments.planner, out.problem, options);
  out.file = plan_file_of(out.problem, out.plan);
  return out;
}

void check_numbers(const PlanArguments& arguments) {
  if (arguments.latency && !(*arguments.latency >= 0 && std::isfinite(*arguments.latency)))
    throw Error(concat("--latency ", number(*arguments.latency), ": it must be a finite number, 0 or above"));
}

// --device says where stages compute if that is measured, and whose published figures count if not.
void settle_device(PlanArguments& arguments) {
  if (arguments.cluster != "local" && !arguments.device.empty()) arguments.figures = std::exchange(arguments.device, "");
  if (arguments.cluster == "local" && !arguments.figures.empty())
    throw Error(concat("--cluster local measures, and --figures ", arguments.figures, " says what was published"), {},
                "leave out --figures; --device cuda measures this machine's GPU");
}

// Throws Error for options of other planners, and of what is measured or planned otherwise.
void check_options(const PlanArguments& arguments) {
  const bool of_configurations = !arguments.varied.empty() || find_variant_planner(arguments.planner);
  check_beside(*arguments.command, {{{"--straight", "--ignore-transfers"}, arguments.planner == "pipedream", "--planner pipedream"},
                                    {{"--states", "--every"}, arguments.planner == "degrees", "--planner degrees"},
                                    {{"--candidates", "--rounds"}, arguments.cluster == "local", "--cluster local"},
                                    {{"--nodes", "--no-replicas", "--seed"}, !of_configurations, "a planner of stages"}});
}

void plan_command(PlanArguments& arguments) {
  settle_device(arguments);
  check_numbers(arguments);
  check_options(arguments);
  if (!arguments.varied.empty() || find_variant_planner(arguments.planner)) return plan_variants_command(arguments);
  if (arguments.slice_unit > 0)
    throw Error("--slice-unit is of slices that are planned", {}, "--vary slices=planned, or --planner sequences");
  std::vector<std::string> others;
  for (const VariantPlanner& planner : variant_planners()) others.push_back(planner.name);
  const bool groups = planner_named(arguments.planner, others).equal_groups;  // ahead of anything that is measured for it
  if (!arguments.only.empty() && !groups) throw Error("--only is of --planner degrees and sequences");
  if (groups && arguments.cluster == "local")
    throw Error("--cluster local and --planner degrees", {}, "degrees are for a cluster's FILE, or --devices");
  PlanOptions options = options_of(arguments, "f32");
  std::vector<PlannedModel> found;
  if (is_config(arguments)) {
    const Config config = config_of(arguments);
    options = options_of(arguments, config.train.dtype);
    found = plan_config(arguments, config, options);
  } else {
    found.push_back(plan_graph(arguments, options));
  }
  PlanReport report{.planned = std::move(found[0]), .assumed = {}, .explanation = {}};
  const PlannedModel& best = report.planned;
  add_timeline(report.planned);
  std::vector<OtherPlan> slower;
  for (std::size_t i = 1; i < found.size(); ++i) slower.push_back({found[i].plan.planner, found[i].file.predicted_time});
  if (arguments.explain && !groups) report.explanation = explain(arguments.planner, best.problem, best.plan, slower, options);
  report.assumed = assumed(arguments, best.problem);
  if (!arguments.out.empty()) write_file(arguments.out, print(best.file));
  print_plan(arguments, report);
}

std::string planner_lines() {
  std::string out = "Planners:\n";
  for (const PlannerInfo& planner : planners()) out += concat("  ", planner.name, ": ", planner.summary, "\n");
  for (const VariantPlanner& planner : variant_planners()) out += concat("  ", planner.name, ": ", planner.summary, "\n");
  return out;
}

// The flags refer to `arguments`.
void add_problem_flags(CLI::App& command, PlanArguments& arguments) {
  begin_group(command, groups::kWhat);
  command
      .add_option("WHAT", arguments.what,
                  "A graph with costs (PipeDream, Piper, dnn-partitioning, GraphPipe, Penstock), CONFIG.toml or a model's name")
      ->required();
  begin_group(command, groups::kWhere);
  command.add_option("--cluster", arguments.cluster, "The cluster's file, or local: this machine, measured, with pipeline.actors threads")
      ->type_name("FILE.toml|local");
  command.add_option("--devices", arguments.devices, "Equal devices instead of a cluster's file [as the graph's file says]");
  add_positive_option(
      command, "--bandwidth", Quantity::bytes_per_second, [&arguments](double bytes) { arguments.bandwidth = bytes; },
      "Bandwidth of every link, in bytes per second [unlimited]");
  add_amount_option(
      command, "--latency", Quantity::seconds, [&arguments](const Amount& amount) { arguments.latency = amount.value; },
      "Latency of every link, in seconds [0]");
  add_positive_option(
      command, "--memory-limit,--memory", Quantity::bytes, [&arguments](double bytes) { arguments.memory = bytes; },
      "Memory of every device [unlimited]");
}

void add_planner_flags(CLI::App& command, PlanArguments& arguments) {
  begin_group(command, groups::kSearch);
  command.add_option("--planner", arguments.planner, "The planner, of those below")->capture_default_str()->type_name("NAME");
  add_positive_option(
      command, "--seconds", Quantity::seconds,
      [&arguments](double seconds) {
        arguments.options.seconds = seconds;
        arguments.limited = true;
      },
      "Seconds after which the search ends at the latest; of whole configurations unlimited")
      ->default_str(short_decimal(arguments.options.seconds, 3));
  command.add_option("--seed", arguments.options.seed, "Seed of what is random")->capture_default_str();
  command.add_flag("--straight", arguments.options.straight, "With --planner pipedream: one device for each stage");
  command.add_flag("--ignore-transfers", arguments.options.ignore_transfers, "With --planner pipedream: without activations' transfers");
  command.add_flag("--no-replicas", arguments.no_replicas, "One device for each stage");
  command
      .add_option_function<std::string>(
          "--microbatch-sizes,--micro-batches", [&arguments](const std::string& text) { arguments.micro_batches = sizes_in(text); },
          "Sizes of micro-batches to choose from, in samples: 1,2,4 [powers of two]")
      ->type_name("N,...");
  command.add_option("--batch", arguments.batch, "Samples of a step [as the graph or the configuration says]")
      ->check(CLI::Range(1, INT_MAX));
}

// Flags of what is measured here, of whole configurations, and of single planners.
void add_choice_flags(CLI::App& command, PlanArguments& arguments) {
  begin_group(command, groups::kSearch);
  command.add_option("--nodes", arguments.nodes, "Nodes of a configuration's model at most")
      ->check(CLI::Range(1, kMostNodes))
      ->capture_default_str();
  command.add_option("--candidates", arguments.candidates, "With --cluster local: plans that are measured")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  command.add_option("--rounds", arguments.rounds, "With --cluster local: measured steps of each program")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  command
      .add_option("--vary", arguments.varied,
                  "Compare whole configurations, with each of a key's values: --vary slices=1,4,planned --vary recompute=none,inputs")
      ->type_name("KEY=VALUES")
      ->take_all()
      ->expected(1, -1);
  command
      .add_option("--slice-unit", arguments.slice_unit,
                  "Planned slices are multiples of so many tokens [128, but from a 64th to a 16th of the sequence]")
      ->check(CLI::Range(1, INT_MAX))
      ->type_name("TOKENS");
  command
      .add_option("--only", arguments.only,
                  "With --planner degrees: fix some, pipe=8,tensor=4,zero=3,schedule=zeropp; sequences: "
                  "pipeline.context=8,slices=1,slices=8 [none]")
      ->type_name("KEY=VALUE,...");
  command
      .add_option("--states", arguments.states,
                  "With --planner degrees: bytes of a parameter, of its gradient and of the optimiser's state [by dtype]")
      ->type_name("P+G+O");
  command.add_flag("--every", arguments.options.degrees.every, "With --planner degrees: simulate also what cannot be the fastest");
}

// Flags for configurations, and for what is printed and written.
void add_model_flags(CLI::App& command, PlanArguments& arguments) {
  begin_group(command, groups::kWhere);
  command
      .add_option("--figures", arguments.figures,
                  "Device whose published figures time a configuration, or a graph without times [the cluster's device, else v100]")
      ->type_name("NAME");
  command.add_option("--device", arguments.device, "With --cluster local: what is measured and planned for [cpu]")
      ->type_name("cpu|cuda|standin")
      ->excludes("--figures");
  begin_group(command, groups::kModel);
  add_set_option(command, arguments.settings);
  begin_group(command, groups::kOutput);
  command.add_flag("--explain", arguments.explain, "The bottleneck, the next best plan, and what a larger cluster would give");
  command.add_option("--out", arguments.out, "Write the plan, for train --plan and show; of whole configurations FILE.toml, for train")
      ->type_name("FILE");
  add_log_options(command, arguments.log);
  add_json_flag(command, arguments.json);
}

}  // namespace

void add_plan(CLI::App& app, const ModelRegistry& models) {
  CLI::App* command = app.add_subcommand("plan", "Finds stages, devices, micro-batches and a schedule for a model and a cluster");
  const auto arguments = std::make_shared<PlanArguments>();
  arguments->models = &models;
  arguments->command = command;
  add_problem_flags(*command, *arguments);
  add_planner_flags(*command, *arguments);
  add_choice_flags(*command, *arguments);
  add_model_flags(*command, *arguments);
  command->footer(planner_lines() +
                  "Example:\n  penstock plan examples/gpt.toml --cluster local --out plan.json --explain\n"
                  "  penstock train examples/gpt.toml --plan plan.json --out runs/planned\n"
                  "  penstock plan examples/graphs/two-encoders.json --devices 4 --bandwidth 1e9 --planner pipedream");
  command->callback([arguments] { plan_command(*arguments); });
}

}  // namespace penstock
