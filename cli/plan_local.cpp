// penstock plan --cluster local: measures nodes and links on this machine, and then the best plans themselves.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>

#include "base/text.h"
#include "cli/clusters.h"
#include "cli/kernels.h"
#include "cli/plan.h"
#include "config/plan_model.h"
#include "cost/cost_model.h"
#include "data/dataset.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "profile/profile.h"
#include "report/timeline_json.h"
#include "search/search.h"
#include "simulate/durations.h"
#include "simulate/simulate.h"
#include "torch/executor.h"

namespace penstock {
namespace {

constexpr double kSearchSeconds = 2;  // the most seconds of searching the order of one plan's actions

class LocalPlanner {
 public:
  LocalPlanner(const PlanArguments& arguments, const Config& config)
      : arguments_(arguments),
        config_(config),
        models_(*arguments.models),
        data_(make_dataset(config, *prepare_sequential(config, models_).model)) {
    context_.file = "the measured costs";
    profiling_.rounds = arguments.rounds;
    profiling_.input = [this](std::int64_t step) {
      return StepInput{step, config_.train.seed, false, data_->training_samples((step - 1) * config_.train.batch)};
    };
  }

  std::vector<Candidate> run() {
    groups_ = planning_nodes(config_, models_, arguments_.nodes);
    std::vector<Candidate> found = plan_sizes();
    const auto faster = [](const Candidate& a, const Candidate& b) { return a.file.predicted_time < b.file.predicted_time; };
    std::stable_sort(found.begin(), found.end(), faster);
    if (found.size() > static_cast<std::size_t>(arguments_.candidates)) found.resize(static_cast<std::size_t>(arguments_.candidates));
    for (Candidate& candidate : found) measure_plan(candidate);
    keep_to_memory(found);
    std::stable_sort(found.begin(), found.end(), faster);
    return found;
  }

 private:
  int actors() const { return static_cast<int>(config_.pipeline.actors); }

  static void say(const std::string& text) { std::fprintf(stderr, "plan: %s\n", text.c_str()); }

  Costs measured(Cluster& cluster, std::vector<Program>& programs, const Prepared& prepared) {
    for (Program& program : programs) choose_kernels(config_, program);
    return measure_costs(cluster, nullptr, programs, fresh_start(config_, prepared).state, profiling_);
  }

  std::unique_ptr<Cluster> cluster_of(int devices) { return local_cluster(devices, config_, data_); }

  // The groups as a graph with times on one device, in micro-batches of `size`.
  PlanGraph graph_of(int size) {
    say(concat("measuring ", config_.model.name, " in micro-batches of ", size));
    const Graph step = grouped_step(config_, models_, groups_, size);
    std::vector<Program> programs = {grouped_program(step)};
    const std::unique_ptr<Cluster> one = cluster_of(1);
    const Costs costs = measured(*one, programs, prepare_sequential(config_, models_));
    const auto seconds = action_seconds(programs[0], durations_of(programs[0], costs, context_));
    PlanGraph graph = plan_graph_of(prepare_stages(step), [&](const StageTask& task) {
      const auto found = seconds.find({task.stage, task.kind});
      return found == seconds.end() ? 0 : found->second;
    });
    share_update(graph, update_seconds(programs[0], task_seconds(programs[0], costs, context_)));
    graph.name = config_.model.name;
    graph.samples = static_cast<int>(config_.train.batch);
    return graph;
  }

  ClusterSpec cluster_spec(const PlanGraph& graph) {
    Link link;
    if (actors() > 1) {
      say("measuring links");
      double bytes = 0;
      for (const PlanEdge& edge : graph.edges) bytes += edge.bytes / static_cast<double>(graph.edges.size());
      Costs costs;
      const std::unique_ptr<Cluster> two = cluster_of(2);
      measure_link(*two, "threads", static_cast<std::int64_t>(bytes), arguments_.rounds, costs);
      link = costs.links.at("threads");
    }
    ClusterSpec cluster = uniform_cluster(actors(), link.bandwidth, link.latency + link.start_seconds + link.wake_seconds,
                                          arguments_.memory.value_or(ClusterDevice().memory));
    cluster.name = concat(actors(), " threads of this machine");
    return cluster;
  }

  // The best plan for each size. Throws Error where there is none for any size.
  std::vector<Candidate> plan_sizes() {
    std::vector<Candidate> found;
    std::optional<ClusterSpec> cluster;
    std::string refused;
    PlanOptions options = arguments_.options;
    options.seconds /= static_cast<double>(arguments_.micro_batches.size());
    for (const int size : arguments_.micro_batches) {
      Candidate candidate;
      candidate.problem.graph = graph_of(size);
      if (!cluster) cluster = cluster_spec(candidate.problem.graph);
      candidate.problem.cluster = *cluster;
      candidate.problem.replicas = false;
      try {
        candidate.plan = make_plan(arguments_.planner, candidate.problem, options);
      } catch (const Error& error) {
        refused = error.what();
        if (size == arguments_.micro_batches.back() && found.empty()) throw;
        continue;
      }
      candidate.file = model_plan(config_, models_, groups_, candidate.problem, candidate.plan);
      candidate.file.schedule.actors.resize(static_cast<std::size_t>(actors()));
      found.push_back(std::move(candidate));
    }
    return found;
  }

  // The measured times of the plan's own stages, with whole backwards and with split ones.
  TableCosts stage_costs(const std::vector<Program>& programs, const Costs& costs, std::size_t stages) const {
    TableCosts out;
    out.stages.resize(stages);
    for (const Program& program : programs)
      for (const auto& [action, seconds] : action_seconds(program, durations_of(program, costs, context_)))
        out.stages[static_cast<std::size_t>(action.first)].time[static_cast<std::size_t>(action.second)] = seconds;
    return out;
  }

  SearchProblem search_problem(const Candidate& candidate, const TableCosts& costs, const StageShape& shape) const {
    const PlanFile& plan = candidate.file;
    SearchProblem problem;
    problem.shape = shape;
    problem.actors = static_cast<int>(plan.stages.size());
    problem.microbatches = plan.microbatches;
    problem.costs = costs;
    const ClusterLink link = candidate.problem.cluster.devices.size() > 1 ? candidate.problem.cluster.link(0, 1) : ClusterLink{};
    problem.network.link.latency = link.latency;
    problem.network.link.bandwidth = link.bandwidth;
    for (const PlanFile::Link& edge : plan.links) {
      StageCosts& from = problem.costs.stages[static_cast<std::size_t>(edge.from)];
      StageCosts& to = problem.costs.stages[static_cast<std::size_t>(edge.to)];
      from.forward_bytes = std::max(from.forward_bytes, edge.bytes);
      to.backward_bytes = std::max(to.backward_bytes, edge.bytes);
    }
    limit_memory(candidate, problem);
    return problem;
  }

  // Sets the limit in bytes: what the fullest stage leaves of a device's memory.
  void limit_memory(const Candidate& candidate, SearchProblem& problem) const {
    if (!arguments_.memory) return;
    double resident = 0;
    for (const PlanStage& stage : candidate.plan.stages) {
      const SetCost cost = cost_of(candidate.problem.graph, stage.nodes, stage.choices, batch_samples(candidate));
      resident = std::max(resident, cost.resident_bytes);
      for (std::size_t s = 0; s < candidate.file.stages.size(); ++s)
        if (candidate.file.stages[s].name == stage.name) problem.costs.stages[s].live = cost.live_bytes;
    }
    problem.memory_limit = *arguments_.memory - resident;
  }
  static double batch_samples(const Candidate& candidate) {
    return static_cast<double>(candidate.file.samples) / candidate.file.microbatches;
  }

  // Searches the order of the plan's actions with measured stages; then measures and simulates its own program.
  void measure_plan(Candidate& candidate) {
    PlanFile& plan = candidate.file;
    say(concat("measuring ", plan.stages.size(), " stages in micro-batches of ", plan.stages[0].micro_batch));
    Prepared prepared = prepare(config_, plan, models_);
    const StageShape shape = shape_of(training_graph(config_, prepared));
    const std::unique_ptr<Cluster> cluster = cluster_of(actors());
    std::vector<Program> programs;
    for (Schedule& table : profiled_tables(prepared.schedule)) {
      prepared.schedule = without_missing(std::move(table), shape);
      programs.push_back(compile_training(config_, prepared));
    }
    const Costs costs = measured(*cluster, programs, prepared);
    const TableCosts stages = stage_costs(programs, costs, plan.stages.size());
    const SearchResult result = search_schedule(search_problem(candidate, stages, shape), search_options(plan));
    plan.schedule = result.schedule;
    plan.schedule.actors.resize(static_cast<std::size_t>(actors()));
    prepared.schedule = plan.schedule;
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      plan.stages[s].forward = stages.stages[s].time[static_cast<std::size_t>(Kind::F)];
      plan.stages[s].backward = stages.stages[s].time[static_cast<std::size_t>(Kind::B)];
    }
    predict(*cluster, prepared, plan);
  }

  SearchOptions search_options(const PlanFile& plan) const {
    SearchOptions options;
    options.seed = arguments_.options.seed;
    options.seconds = kSearchSeconds;
    Route route;
    for (std::int32_t s = 0; s < static_cast<std::int32_t>(plan.stages.size()); ++s) route.actor_of_stage.push_back(s);
    for (std::int32_t m = 0; m < plan.microbatches; ++m) route.microbatches.push_back(m);
    options.placements = {{route}};
    return options;
  }

  void predict(Cluster& cluster, const Prepared& prepared, PlanFile& plan) {
    std::vector<Program> programs = {compile_training(config_, prepared)};
    const Program& program = programs[0];
    const Costs costs = measured(cluster, programs, prepared);
    const Network network = actors() > 1 ? network_of(costs, context_) : Network{};
    const Simulation simulation = simulate(program, durations_of(program, costs, context_), network, {.record = true});
    plan.predicted_time = simulation.makespan + costs.step_overhead.at("threads");
    plan.lower_bound = std::min(plan.lower_bound, plan.predicted_time);
    plan.optimal = false;  // it was proven for other costs than these
    const std::vector<std::int64_t> beside = kernel_bytes(program, costs);
    plan.peak_bytes.clear();
    for (std::size_t d = 0; d < program.devices.size(); ++d)
      plan.peak_bytes.push_back(static_cast<double>(program.devices[d].device_bytes() + beside[d]));
    const std::vector<std::int32_t> actor = actor_of_stage(plan.schedule);
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      plan.stages[s].devices = {actor[s]};
      plan.stages[s].bytes = plan.peak_bytes[static_cast<std::size_t>(actor[s])];
    }
    Timeline timeline = simulation.timeline;
    timeline.title = concat(config_.model.name, ", planned");
    plan.timeline = concat("{\"penstock\":", timeline_data(timeline), "}");
  }

  void keep_to_memory(std::vector<Candidate>& found) const {
    if (!arguments_.memory) return;
    double least = std::numeric_limits<double>::infinity();
    std::vector<Candidate> kept;
    for (Candidate& candidate : found) {
      const double most = *std::max_element(candidate.file.peak_bytes.begin(), candidate.file.peak_bytes.end());
      least = std::min(least, most);
      if (most <= *arguments_.memory) kept.push_back(std::move(candidate));
    }
    if (kept.empty())
      throw Error(concat("no plan's program fits ", bytes_text(*arguments_.memory), " on each device"),
                  {concat("the smallest needs ", bytes_text(least), " (", number(least), " bytes)")},
                  "give more memory, more actors or smaller micro-batches");
    found = std::move(kept);
  }

  const PlanArguments& arguments_;
  const Config& config_;
  const ModelRegistry& models_;
  const std::shared_ptr<const Dataset> data_;
  NodeGroups groups_;
  CostContext context_;
  ProfileOptions profiling_;
};

}  // namespace

std::vector<Candidate> plan_locally(const PlanArguments& arguments, const Config& config) {
  if (config.pipeline.backend != "threads")
    throw Error(concat("--cluster local measures threads; pipeline.backend is ", config.pipeline.backend), {},
                "plan with threads and run the plan with any backend");
  return LocalPlanner(arguments, config).run();
}

}  // namespace penstock
