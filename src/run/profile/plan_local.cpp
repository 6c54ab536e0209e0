// SPDX-License-Identifier: Apache-2.0
#include "profile/plan_local.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <limits>

#include "base/text.h"
#include "base/words.h"
#include "cost/cost_model.h"
#include "driver/training.h"
#include "penstock/error.h"
#include "penstock/race.h"
#include "penstock/search.h"
#include "profile/profile.h"
#include "report/progress.h"
#include "report/table.h"
#include "report/timeline_json.h"
#include "simulate/durations.h"
#include "simulate/simulate.h"

namespace penstock {
namespace {

constexpr double kSearchSeconds = 2;  // the most seconds of searching the order of one plan's actions
constexpr int kRacers = 3;            // tables found, and named schedules, that run
constexpr double kTurnSeconds = 1;    // of a table in each round of a race, about

// The data that all steps of planning here share.
struct Local {
  const Workbench& bench;
  const LocalPlanning& planning;
  CostContext context{};
  ProfileOptions profiling{};
  MergedNodes merged{};

  int actors() const { return bench.config.pipeline.table.actors; }
  void say(const std::string& text) const {
    if (planning.progress) planning.progress(text);
  }
};

Costs measured(const Local& of, Cluster& cluster, std::vector<Program>& programs, const Prepared& prepared) {
  for (Program& program : programs) of.bench.choose_kernels(program);
  return measure_costs(cluster, nullptr, programs, fresh_start(of.bench.config, prepared).state, of.profiling);
}

// The merged nodes as a graph with times on one device, in micro-batches of `size`.
PlanGraph graph_of(const Local& of, int size) {
  of.say(concat("measuring ", of.bench.config.model.name, " in micro-batches of ", size));
  const Graph step = merged_step(of.bench.config, of.bench.models, of.merged, size);
  std::vector<Program> programs = {merged_program(step)};
  const std::unique_ptr<Cluster> one = of.bench.threads(1);
  const Costs costs = measured(of, *one, programs, prepare_sequential(of.bench.config, of.bench.models));
  const auto seconds = action_seconds(programs[0], durations_of(programs[0], costs, of.context));
  PlanGraph graph = plan_graph_of(prepare_stages(step), [&](const StageTask& task) {
    const auto found = seconds.find({task.stage.value, task.kind});
    return found == seconds.end() ? 0 : found->second;
  });
  share_update(graph, update_seconds(programs[0], task_seconds(programs[0], costs, of.context)));
  graph.name = of.bench.config.model.name;
  graph.samples = static_cast<int>(of.bench.config.train.batch);
  return graph;
}

ClusterSpec cluster_spec(const Local& of, const PlanGraph& graph) {
  Link link;
  if (of.actors() > 1) {
    of.say("measuring links");
    double bytes = 0;
    for (const PlanEdge& edge : graph.edges) bytes += edge.bytes / static_cast<double>(graph.edges.size());
    Costs costs;
    const std::unique_ptr<Cluster> two = of.bench.threads(2);
    measure_link(*two, of.profiling, static_cast<std::int64_t>(bytes), costs);
    link = costs.links.at("threads");
  }
  ClusterSpec cluster = uniform_cluster(of.actors(), link.bandwidth, link.latency + link.start_seconds + link.wake_seconds,
                                        of.planning.memory.value_or(ClusterDevice().memory));
  cluster.name = concat(of.actors(), of.profiling.by_itself ? " devices" : " threads", " of this machine");
  const std::vector<double> held_back = stragglers_of(of.bench.config, std::vector(static_cast<std::size_t>(of.actors()), 1));
  for (std::size_t d = 0; d < held_back.size(); ++d) cluster.devices[d].speed = 1 / held_back[d];
  return cluster;
}

// The table of a plan whose row s is of stage s, with the rows of the stages' devices.
Schedule on_devices(const Schedule& table, const Plan& plan, int actors) {
  Schedule out = table;
  out.actors.assign(static_cast<std::size_t>(actors), {});
  for (std::size_t s = 0; s < plan.stages.size(); ++s) out.actors[static_cast<std::size_t>(plan.stages[s].devices[0])] = table.actors[s];
  return out;
}

// The planner's answer to the problem. Throws Error where there is none.
PlannedModel planned(const Local& of, const std::string& planner, PlanProblem problem, const PlanOptions& options) {
  PlannedModel out{.problem = std::move(problem), .plan = {}, .file = {}};
  if (planner_named(planner).lean_ways)
    add_lean_ways(out.problem.graph, /*swaps=*/false,
                  [&](int size) { return merged_step(of.bench.config, of.bench.models, of.merged, size); });
  out.plan = make_plan(planner, out.problem, options);
  out.file = model_plan(of.bench.config, of.bench.models, of.merged, out.problem, out.plan);
  out.file.schedule = on_devices(out.file.schedule, out.plan, of.actors());
  return out;
}

// The options of one of all plans.
PlanOptions one_of_all(const Local& of) {
  PlanOptions options = of.planning.options;
  options.seconds /= static_cast<double>(of.planning.sizes.size());
  return options;
}

// The best plan for each size. Throws Error where there is none for any size.
std::vector<PlannedModel> plan_sizes(const Local& of) {
  std::vector<PlannedModel> found;
  std::optional<ClusterSpec> cluster;
  for (const int size : of.planning.sizes) {
    PlanProblem problem{.graph = graph_of(of, size), .cluster = {}, .replicas = false};
    if (!cluster) cluster = cluster_spec(of, problem.graph);
    problem.cluster = *cluster;
    try {
      found.push_back(planned(of, of.planning.planner, std::move(problem), one_of_all(of)));
    } catch (const Error&) {
      if (size == of.planning.sizes.back() && found.empty()) throw;
    }
  }
  return found;
}

// The measured times of the plan's own stages, with whole backwards and with split ones.
TableCosts stage_costs(const Local& of, const std::vector<Program>& programs, const Costs& costs, std::size_t stages) {
  TableCosts out;
  out.stages.resize(stages);
  for (const Program& program : programs)
    for (const auto& [action, seconds] : action_seconds(program, durations_of(program, costs, of.context)))
      out.stages[static_cast<std::size_t>(action.first)].time[static_cast<std::size_t>(action.second)] = seconds;
  return out;
}

double batch_samples(const PlannedModel& candidate) {
  return static_cast<double>(candidate.file.samples) / candidate.file.microbatches;
}

// Sets the limit in bytes: what the fullest stage leaves of a device's memory.
void limit_memory(const Local& of, const PlannedModel& candidate, SearchProblem& problem) {
  if (!of.planning.memory) return;
  double resident = 0;
  for (const PlanStage& stage : candidate.plan.stages) {
    const SetCost cost = cost_of(candidate.problem.graph, stage.nodes, stage.choices, batch_samples(candidate));
    resident = std::max(resident, cost.resident_bytes);
    for (std::size_t s = 0; s < candidate.file.stages.size(); ++s)
      if (candidate.file.stages[s].name == stage.name) problem.costs.stages[s].live = cost.live_bytes;
  }
  problem.memory_limit = *of.planning.memory - resident;
}

SearchProblem search_problem(const Local& of, const PlannedModel& candidate, const TableCosts& costs, const StageShape& shape) {
  const PlanFile& plan = candidate.file;
  SearchProblem problem;
  problem.shape = shape;
  problem.actors = of.actors();
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
  limit_memory(of, candidate, problem);
  return problem;
}

SearchOptions search_options(const Local& of, const PlannedModel& candidate) {
  SearchOptions options;
  options.seed = of.planning.options.seed;
  options.seconds = kSearchSeconds;
  Route route;
  for (const PlanStage& stage : candidate.plan.stages) route.actor_of_stage.push_back(stage.devices[0]);
  for (std::int32_t m = 0; m < candidate.file.microbatches; ++m) route.microbatches.push_back(m);
  options.placements = {{route}};
  return options;
}

void predict(const Local& of, Cluster& cluster, const Prepared& prepared, PlanFile& plan) {
  std::vector<Program> programs = {compile_training(of.bench.config, prepared)};
  const Program& program = programs[0];
  const Costs costs = measured(of, cluster, programs, prepared);
  const TableCosts stages = stage_costs(of, programs, costs, plan.stages.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const auto seconds = [&](Kind kind) { return stages.stages[s].time[static_cast<std::size_t>(kind)]; };
    plan.stages[s].forward = seconds(Kind::F);
    plan.stages[s].backward = seconds(Kind::B) + seconds(Kind::I) + seconds(Kind::W);
  }
  const Network network = of.actors() > 1 ? network_of(costs, of.context) : Network{};
  const Simulation simulation = simulate(program, durations_of(program, costs, of.context), network, {.record = true});
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
  timeline.title = concat(of.bench.config.model.name, ", planned");
  plan.timeline = concat("{\"penstock\":", timeline_data(timeline), "}");
}

// Sets the plan's table: of those that a search with the measured stages found, and of the named schedules, the one with the fastest steps.
// They differ by more than is predicted: the more micro-batches an actor holds, the less of them the caches do.
void race_tables(const Local& of, Cluster& cluster, Prepared& prepared, PlannedModel& candidate, const SearchProblem& problem) {
  const auto with_table = [&](const Schedule& table) {
    prepared.schedule = table;
    prepared.schedule.actors.resize(static_cast<std::size_t>(of.actors()));
    return compile_training(of.bench.config, prepared);
  };
  double work = 0;  // seconds of a step on one device
  for (const StageCosts& stage : problem.costs.stages)
    work += problem.microbatches * (stage.time[static_cast<std::size_t>(Kind::F)] + stage.time[static_cast<std::size_t>(Kind::B)]);
  RacedSearchOptions options;
  options.chunks = {1};
  options.search = search_options(of, candidate);
  options.candidates = kRacers;
  options.model = of.bench.config.model.name;
  options.race.steps = std::clamp<std::int64_t>(static_cast<std::int64_t>(kTurnSeconds / work), 1, options.race.steps);
  options.race.warm_up = std::min(options.race.warm_up, options.race.steps - 1);
  if (work > kTurnSeconds) options.race.rounds = 1;  // long steps differ little from round to round
  const StateSource state = fresh_start(of.bench.config, prepared).state;
  options.race.restart = [&] { cluster.set_state(state); };
  const auto number = std::make_shared<std::int64_t>(0);
  const RacedSearch raced =
      raced_search([&](int) { return problem; },
                   [&](const Schedule& table) { return timed_step(of.bench, cluster, with_table(table), number); }, options);
  with_table(raced.result.schedule);
  candidate.file.schedule = prepared.schedule;
}

// Chooses the order of the plan's actions with measured stages; then measures and simulates its own program.
void measure_plan(const Local& of, PlannedModel& candidate) {
  PlanFile& plan = candidate.file;
  of.say(concat("measuring ", plan.stages.size(), " stages in micro-batches of ", plan.stages[0].micro_batch));
  Prepared prepared = prepare(of.bench.config, plan, of.bench.models);
  const StageShape shape = shape_of(training_graph(of.bench.config, prepared));
  const std::unique_ptr<Cluster> cluster = of.bench.threads(of.actors());
  std::vector<Program> programs;
  for (Schedule& table : profiled_tables(prepared.schedule)) {
    prepared.schedule = without_missing(std::move(table), shape);
    programs.push_back(compile_training(of.bench.config, prepared));
  }
  const Costs costs = measured(of, *cluster, programs, prepared);
  const TableCosts stages = stage_costs(of, programs, costs, plan.stages.size());
  race_tables(of, *cluster, prepared, candidate, search_problem(of, candidate, stages, shape));
  predict(of, *cluster, prepared, plan);
}

// The problem of a measured plan, with the times of each stage's nodes scaled to what the stage took: the nodes were measured one after the
// other, and what a stage takes depends on what its nodes leave in the caches for each other.
PlanProblem scaled_to_stages(const PlannedModel& measured) {
  PlanProblem problem = measured.problem;
  for (const PlanStage& stage : measured.plan.stages) {
    const auto found = std::ranges::find(measured.file.stages, stage.name, &PlanFile::Stage::name);
    if (found != measured.file.stages.end()) scale_times(problem.graph, stage, batch_samples(measured), found->forward, found->backward);
  }
  return problem;
}

bool is_cut_alike(const PlannedModel& a, const PlannedModel& b) {
  return batch_samples(a) == batch_samples(b) && std::ranges::equal(a.plan.stages, b.plan.stages, {}, &PlanStage::nodes, &PlanStage::nodes);
}

// Adds plans that cut the first one anew by what its stages took. The best in simulation is the best for 1f1b, whose first stage may take
// longer than the others; the fastest table is often one that waits less, for which equal stages are better.
void cut_anew(const Local& of, std::vector<PlannedModel>& found) {
  PlannedModel last = found.front();
  const PlannerInfo& own = planner_named(of.planning.planner);
  for (const std::string& planner : {own.name, own.even.empty() ? own.name : own.even}) {
    PlannedModel next;
    try {
      next = planned(of, planner, scaled_to_stages(last), one_of_all(of));
    } catch (const Error&) {
      continue;  // there is a plan already
    }
    if (std::ranges::any_of(found, [&](const PlannedModel& other) { return is_cut_alike(next, other); })) continue;
    measure_plan(of, next);
    found.push_back(next);
    last = std::move(next);
  }
}

void keep_to_memory(const Local& of, std::vector<PlannedModel>& found) {
  if (!of.planning.memory) return;
  double least = std::numeric_limits<double>::infinity();
  std::vector<PlannedModel> kept;
  for (PlannedModel& candidate : found) {
    const double most = *std::max_element(candidate.file.peak_bytes.begin(), candidate.file.peak_bytes.end());
    least = std::min(least, most);
    if (most <= *of.planning.memory) kept.push_back(std::move(candidate));
  }
  if (kept.empty())
    throw Error(concat("no plan's program fits ", bytes_text(*of.planning.memory), " on each device"),
                {concat("the smallest needs ", bytes_text(least), " (", number(least), " bytes)")},
                "give more memory, more actors or smaller micro-batches");
  found = std::move(kept);
}

// Seconds of a step of all samples on one device, once it has run.
double step_seconds(const Local& of) {
  Program program = merged_program(merged_step(of.bench.config, of.bench.models, of.merged, of.planning.sizes.back()));
  const std::unique_ptr<Cluster> one = of.bench.threads(1);
  const TimedStep step = timed_step(of.bench, *one, std::move(program), std::make_shared<std::int64_t>(0));
  one->set_state(fresh_start(of.bench.config, prepare_sequential(of.bench.config, of.bench.models)).state);
  step();
  return step();
}

// Says what is measured and about how long that takes: steps of each size, and of each plan with a search and a race of its tables; a race
// has up to twice kRacers tables, of which half leave after each round.
void announce(const Local& of) {
  constexpr double kRoundsOfARace = 2, kOtherSteps = 2;  // measured beside each round: whole and split backwards
  const double step = step_seconds(of), rounds = kOtherSteps * of.planning.rounds * step;
  const double plans = std::min<double>(of.planning.candidates, static_cast<double>(of.planning.sizes.size())) + 1;
  const double race = 2 * kRacers * kRoundsOfARace * std::max(step, std::min(kTurnSeconds, 10 * step));
  const double all = static_cast<double>(of.planning.sizes.size()) * rounds + plans * (rounds + kSearchSeconds + race);
  of.say(concat("a step takes ", time_text(step, true), "; measuring ", counted(std::ssize(of.planning.sizes), "size"), " and about ",
                counted(static_cast<std::int64_t>(plans), "plan"), " takes about ", rough_duration(all)));
}

// What is measured while others compute is too slow, and slower for some plans than for others.
void warn_if_busy(const Local& of) {
  double load = 0;
  const auto processors = static_cast<double>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
  if (::getloadavg(&load, 1) != 1 || load < 0.5 * processors) return;
  of.say(concat("this machine is busy: in the last minute ", fixed(load, 1), " programs wanted to run on ",
                counted(static_cast<std::int64_t>(processors), "processor"), "; measure again when it is idle"));
}

}  // namespace

std::vector<PlannedModel> plan_locally(const Workbench& bench, const LocalPlanning& planning) {
  const Config& config = bench.config;
  check_threads(config);
  Local of{bench, planning};
  of.context.file = "the measured costs";
  of.profiling = profile_options(config, planning.rounds);
  of.profiling.input = [&](std::int64_t number, const Program&) { return bench.input(number); };
  of.merged = planning_nodes(config, bench.models, planning.nodes);
  if (planning.progress) {
    warn_if_busy(of);
    announce(of);
  }
  std::vector<PlannedModel> found = plan_sizes(of);
  const auto faster = [](const PlannedModel& a, const PlannedModel& b) { return a.file.predicted_time < b.file.predicted_time; };
  std::stable_sort(found.begin(), found.end(), faster);
  if (found.size() > static_cast<std::size_t>(planning.candidates)) found.resize(static_cast<std::size_t>(planning.candidates));
  for (PlannedModel& candidate : found) measure_plan(of, candidate);
  std::stable_sort(found.begin(), found.end(), faster);
  cut_anew(of, found);
  keep_to_memory(of, found);
  std::stable_sort(found.begin(), found.end(), faster);
  return found;
}

}  // namespace penstock
