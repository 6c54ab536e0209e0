#include "plan/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/invariant.h"
#include "base/text.h"
#include "penstock/error.h"
#include "plan/cost_model.h"
#include "schedule/work.h"
#include "simulate/table.h"

namespace penstock {
namespace {

// A stage on its devices: what it takes for one of the table's micro-batches.
struct StageFigures {
  double forward = 0, backward = 0, all_reduce = 0;
  double live_bytes = 0, resident_bytes = 0, memory = 0;
  int batch = 1;      // of the table's micro-batches together
  int in_flight = 1;  // most that fit, in the table's micro-batches
};

StageFigures figures_of(const PlanProblem& problem, const PlanStage& stage, int samples, int base) {
  const ClusterSpec& cluster = problem.cluster;
  // Replicas share each micro-batch.
  const SetCost cost = cost_of(problem.graph, stage.nodes, stage.choices, static_cast<double>(samples) / stage.replicas());
  double speed = std::numeric_limits<double>::infinity();
  StageFigures figures;
  figures.memory = std::numeric_limits<double>::infinity();
  for (const int device : stage.devices) {
    speed = std::min(speed, cluster.devices[static_cast<std::size_t>(device)].speed);
    figures.memory = std::min(figures.memory, cluster.devices[static_cast<std::size_t>(device)].memory);
  }
  figures.batch = samples / base;
  figures.forward = cost.forward / speed / figures.batch;
  figures.backward = cost.backward / speed / figures.batch;
  figures.live_bytes = cost.live_bytes / figures.batch;
  figures.resident_bytes = cost.resident_bytes;
  if (stage.replicas() > 1) figures.all_reduce = all_reduce_seconds(cluster, stage.devices, cost.parameter_bytes);
  return figures;
}

// How far ahead each stage runs: as GraphPipe has it, or less where its memory asks for it, and then no stage after it further.
std::vector<int> ahead_of(const StageShape& shape, const std::vector<StageFigures>& figures, const std::vector<PlanStage>& stages) {
  std::vector<int> sizes;
  for (const StageFigures& f : figures) sizes.push_back(f.batch);
  std::vector<int> ahead = graphpipe_in_flight(shape, sizes);
  for (std::size_t s = 0; s < ahead.size(); ++s) {
    const StageFigures& f = figures[s];
    if (stages[s].ahead > 0) ahead[s] = std::min(ahead[s], stages[s].ahead * f.batch);
    if (f.resident_bytes + ahead[s] * f.live_bytes > f.memory)
      ahead[s] = std::max(static_cast<int>((f.memory - f.resident_bytes) / std::max(f.live_bytes, 1e-300)), f.batch);
    for (const std::int32_t before : shape.predecessors[s]) ahead[s] = std::min(ahead[s], ahead[static_cast<std::size_t>(before)]);
    ahead[s] = std::max(ahead[s] / f.batch * f.batch, f.batch);
  }
  return ahead;
}

TableCosts table_costs(const std::vector<StageFigures>& figures) {
  TableCosts costs;
  for (const StageFigures& f : figures) {
    StageCosts& stage = costs.stages.emplace_back();
    stage.time[static_cast<std::size_t>(Kind::F)] = f.forward;
    stage.time[static_cast<std::size_t>(Kind::B)] = f.backward;
    stage.time[static_cast<std::size_t>(Kind::U)] = f.all_reduce;
    stage.forward_bytes = stage.backward_bytes = 1;  // bytes differ by the pair: see network_of
    stage.live = 1;
  }
  return costs;
}

// A link for each pair of stages, on which their transfer is one byte. Replicas send their parts at once.
Network network_of(const PlanProblem& problem, const Plan& plan, const StageShape& shape, int base) {
  Network network;
  for (std::size_t to = 0; to < plan.stages.size(); ++to)
    for (const std::int32_t from : shape.predecessors[to]) {
      const PlanStage &a = plan.stages[static_cast<std::size_t>(from)], &b = plan.stages[to];
      const ClusterLink between = slowest_link(problem.cluster, a.devices, b.devices);
      Link link;
      link.latency = between.latency;
      const double bytes = bytes_between(problem.graph, a, b, base) / std::min(a.replicas(), b.replicas());
      if (bytes > 0) link.bandwidth = between.bandwidth / bytes;
      network.between[{from, static_cast<std::int32_t>(to)}] = network.between[{static_cast<std::int32_t>(to), from}] = link;
    }
  return network;
}

}  // namespace

int step_samples(const PlanProblem& problem) {
  if (problem.samples > 0) return problem.samples;
  if (problem.graph.samples > 0) return problem.graph.samples;
  return 8 * static_cast<int>(problem.cluster.devices.size()) * measured_samples(problem.graph);
}

bool evaluate(const PlanProblem& problem, Plan& plan) {
  const int samples = step_samples(problem);
  std::vector<int> sizes;
  int base = samples;
  for (const PlanStage& stage : plan.stages) {
    sizes.push_back(stage.samples > 0 ? stage.samples : measured_samples(problem.graph));
    base = std::gcd(base, sizes.back());
  }
  std::vector<StageFigures> figures;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) figures.push_back(figures_of(problem, plan.stages[s], sizes[s], base));
  const StageShape shape = shape_of(problem.graph, plan.stages);
  const std::vector<int> ahead = ahead_of(shape, figures, plan.stages);
  std::vector<int> batches;
  for (const StageFigures& f : figures) batches.push_back(f.batch);

  plan.schedule = with_updates(graphpipe(shape, samples / base, batches, ahead));
  TableOptions options;
  options.network = network_of(problem, plan, shape, base);
  const TableTime time = time_table(plan.schedule, shape, table_costs(figures), options);
  plan.predicted_time = time.makespan;
  plan.peak_bytes.assign(problem.cluster.devices.size(), 0);
  bool fits = true;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const double bytes = figures[s].resident_bytes + time.peak_live[s] * figures[s].live_bytes;
    for (const int device : plan.stages[s].devices) plan.peak_bytes[static_cast<std::size_t>(device)] = bytes;
    fits = fits && bytes <= figures[s].memory * (1 + 1e-9);
  }
  return fits;
}

}  // namespace penstock
