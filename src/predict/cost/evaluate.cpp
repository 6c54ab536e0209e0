// SPDX-License-Identifier: Apache-2.0
#include "cost/evaluate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "penstock/error.h"
#include "penstock/table.h"
#include "schedule/host_copies.h"
#include "schedule/work.h"

namespace penstock {
namespace {

double all_reduce(const ClusterSpec& cluster, const PlanStage& stage, double bytes) {
  if (stage.replicas() < 2) return 0;
  double seconds = 0;
  for (int shard = 0; shard < stage.degree; ++shard) {  // the replicas' devices that hold the same shard
    std::vector<int> ring;
    for (std::size_t i = at(shard); i < stage.devices.size(); i += at(stage.degree)) ring.push_back(stage.devices[i]);
    seconds = std::max(seconds, all_reduce_seconds(cluster, ring, bytes));
  }
  return seconds;
}

StageFigures stage_figures(const PlanProblem& problem, const PlanStage& stage, int samples, int base) {
  const ClusterSpec& cluster = problem.cluster;
  // Replicas share each micro-batch.
  const SetCost cost = cost_of(problem.graph, stage.nodes, stage.choices, static_cast<double>(samples) / stage.replicas());
  StageFigures figures;
  const ClusterDevice device = weakest(cluster, stage.devices);
  figures.memory = device.memory;
  figures.size = samples / base;
  figures.forward = cost.forward / device.speed;
  figures.backward = cost.backward / device.speed;
  figures.live_bytes = cost.live_bytes;
  figures.resident_bytes = cost.resident_bytes;
  figures.swap_bytes = cost.swap_bytes;
  if (cost.swap_bytes > 0 && device.host) figures.copy = device.host->latency + cost.swap_bytes / device.host->bandwidth;
  figures.all_reduce = all_reduce(cluster, stage, cost.parameter_bytes);
  figures.update = cost.update / device.speed;
  return figures;
}

// The links between the stages, ascending. Replicas send their parts at once.
std::vector<StageLink> stage_links(const PlanProblem& problem, const std::vector<PlanStage>& stages, int base) {
  std::vector<StageLink> links;
  for (const StageTransfer& transfer : transfers_between(problem.graph, stages)) {
    const PlanStage &from = stages[transfer.from], &to = stages[transfer.to];
    const ClusterLink between = slowest_link(problem.cluster, from.devices, to.devices);
    const double share = static_cast<double>(base) / std::min(from.replicas(), to.replicas());
    links.push_back({.from = transfer.from,
                     .to = transfer.to,
                     .forward = share * (transfer.forward_bytes / between.bandwidth + transfer.forward_seconds),
                     .backward = share * (transfer.backward_bytes / between.bandwidth + transfer.backward_seconds),
                     .latency = between.latency});
  }
  return links;
}

int round_up(int value, int size) {
  return (value + size - 1) / size * size;
}

// Returns how far a stage x must run ahead of a stage y that it feeds, beyond y's own lead: before x's nth backward y has run as many
// forwards as it is ahead and one micro-batch of x more, less what their sizes share, and x must have run these before.
int lead(const StageFigures& x, const StageFigures& y) {
  return x.size - std::gcd(x.size, y.size);
}

// Limits the micro-batches in flight to `most`, but to no fewer than can run.
void limit(StageFigures& stage, double most) {
  if (most < stage.ahead) stage.ahead = std::max(stage.least, static_cast<int>(most) / stage.size * stage.size);
}

// The most of the step's micro-batches that the stage's memory holds, and no fewer than can run.
int most_in_flight(const StageFigures& stage, int microbatches) {
  if (fits(stage.bytes(microbatches), stage.memory)) return microbatches;
  const double room = stage.memory * kExactFit - stage.resident_bytes;
  const auto held = [&](double beside, double each) { return room > beside && each > 0 ? std::floor((room - beside) / each) : 0; };
  double most = held(kSwappedThere * stage.swap_bytes, stage.live_bytes);
  if (most < kSwappedThere) most = std::min<double>(held(0, stage.live_bytes + stage.swap_bytes), kSwappedThere);
  most *= stage.size;
  return most < microbatches ? std::max(stage.least, static_cast<int>(most)) : microbatches;
}

// Chooses how many micro-batches each stage has in flight: GraphPipe's number (graphpipe_in_flight) or the plan's, or fewer where the
// memory requires it. Then the stages that follow are limited accordingly, or their forwards would wait for what never comes.
void choose_ahead(const std::vector<PlanStage>& plan, PlanFigures& figures) {
  auto& stages = figures.stages;
  for (StageFigures& stage : stages) stage.least = stage.ahead = stage.size;
  // By descending `from`: all stages that it feeds are done.
  for (auto link = figures.links.rbegin(); link != figures.links.rend(); ++link) {
    StageFigures& x = stages[link->from];
    const StageFigures& y = stages[link->to];
    x.least = std::max(x.least, round_up(y.least + lead(x, y), x.size));
    x.ahead = std::max(x.ahead, round_up(y.ahead, y.size) + std::max(x.size, y.size));
  }
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageFigures& stage = stages[s];
    const int wanted =
        plan[s].ahead > 0 ? std::min(plan[s].ahead, figures.microbatches / stage.size) * stage.size : round_up(stage.ahead, stage.size);
    stage.least = std::min(stage.least, figures.microbatches);
    stage.ahead = std::clamp(wanted, stage.least, figures.microbatches);
    stage.most = most_in_flight(stage, figures.microbatches);
  }
  auto link = figures.links.begin();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    StageFigures& stage = stages[s];
    limit(stage, stage.most);
    for (; link != figures.links.end() && link->from == static_cast<int>(s); ++link) {
      if (stage.ahead == figures.microbatches) continue;  // it runs all forwards first
      StageFigures& after = stages[link->to];
      limit(after, stage.ahead - lead(stage, after));
    }
  }
}

// The costs with which evaluate() calls the table simulator.
TableCosts table_costs(const PlanFigures& figures) {
  TableCosts costs;
  for (const StageFigures& f : figures.stages) {
    StageCosts& stage = costs.stages.emplace_back();
    stage.of(Kind::F) = f.forward / f.size;
    stage.of(Kind::B) = f.backward / f.size;
    stage.of(Kind::U) = f.after_loop();
    stage.of(Kind::OFFLOAD) = stage.of(Kind::RELOAD) = f.copy / f.size;
    // They differ by the pair of stages, so each link moves one byte in its own time.
    stage.forward_bytes = stage.backward_bytes = 1;
  }
  return costs;
}

Network network_of(const PlanFigures& figures) {
  Network network;
  const auto link = [](double latency, double seconds) { return Link{.latency = latency, .bandwidth = 1 / seconds}; };
  for (const StageLink& l : figures.links) {
    network.between[{l.from, l.to}] = link(l.latency, l.forward);
    network.between[{l.to, l.from}] = link(l.latency, l.backward);
  }
  return network;
}

}  // namespace

int step_samples(const PlanProblem& problem) {
  if (problem.samples > 0) return problem.samples;
  if (problem.graph.samples > 0) return problem.graph.samples;
  return 8 * static_cast<int>(problem.cluster.devices.size()) * measured_samples(problem.graph);
}

int batch_of(const PlanProblem& problem, const PlanStage& stage) {
  return stage.samples > 0 ? stage.samples : measured_samples(problem.graph);
}

std::vector<int> allowed_batches(const PlanProblem& problem) {
  std::vector<int> sizes = problem.batches;
  if (sizes.empty())
    for (const PlanNode& node : problem.graph.nodes)
      for (const NodeCost& cost : node.costs) sizes.push_back(cost.samples);
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const int step = step_samples(problem);
  const std::vector<int> all = sizes;
  std::erase_if(sizes, [&](int size) { return size < 1 || step % size != 0; });
  if (!sizes.empty()) return sizes;
  throw Error(concat("no size of a micro-batch divides the step's ", step, " samples"),
              {"sizes: " + join(all, ", ", [](int size) { return std::to_string(size); })}, "give a size that divides the step");
}

std::vector<int> possible_batches(const PlanProblem& problem, int replicas) {
  std::vector<int> sizes = allowed_batches(problem);
  if (!problem.batches.empty()) return sizes;
  const int step = step_samples(problem), measured = measured_samples(problem.graph);
  for (const std::int64_t size : {std::int64_t{measured}, std::int64_t{measured} * replicas})
    if (size <= step && step % size == 0) sizes.push_back(static_cast<int>(size));
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

PlanFigures figures_of(const PlanProblem& problem, const std::vector<PlanStage>& stages) {
  const int samples = step_samples(problem);
  int base = samples;
  for (const PlanStage& stage : stages) base = std::gcd(base, batch_of(problem, stage));
  PlanFigures figures;
  figures.microbatches = samples / base;
  figures.stages.reserve(stages.size());
  for (const PlanStage& stage : stages) figures.stages.push_back(stage_figures(problem, stage, batch_of(problem, stage), base));
  figures.links = stage_links(problem, stages, base);
  choose_ahead(stages, figures);
  return figures;
}

std::int64_t forwards_of(const PlanFigures& figures) {
  return static_cast<std::int64_t>(figures.microbatches) * static_cast<std::int64_t>(figures.stages.size());
}

bool can_be_simulated(const PlanFigures& figures) {
  return forwards_of(figures) <= kMostPlanForwards;
}

int most_stages(const PlanProblem& problem, int samples) {
  return static_cast<int>(std::max<std::int64_t>(kMostPlanForwards / (step_samples(problem) / samples), 1));
}

bool PlanFigures::fit() const {
  return std::all_of(stages.begin(), stages.end(), [](const StageFigures& s) { return fits(s.bytes(s.ahead), s.memory); });
}

bool evaluate(const PlanProblem& problem, Plan& plan) {
  const PlanFigures figures = figures_of(problem, plan.stages);
  const StageShape shape = shape_of(problem.graph, plan.stages);
  std::vector<int> sizes, ahead;
  std::vector<bool> swaps;
  for (const StageFigures& f : figures.stages) {
    sizes.push_back(f.size);
    ahead.push_back(f.ahead);
    swaps.push_back(f.swaps());
  }
  plan.schedule = with_updates(with_host_copies(graphpipe(shape, figures.microbatches, sizes, ahead), swaps));
  TableOptions options;
  options.network = network_of(figures);
  plan.predicted_time = time_table(plan.schedule, shape, table_costs(figures), options).makespan;
  plan.peak_bytes.assign(problem.cluster.devices.size(), 0);
  for (std::size_t s = 0; s < plan.stages.size(); ++s)  // everything counted by `ahead` is alive at once, before the first backward
    for (const int device : plan.stages[s].devices) plan.peak_bytes[device] = figures.stages[s].bytes(figures.stages[s].ahead);
  return figures.fit();
}

namespace {

// The devices of a stage in the name of its row, where many would take all of the room.
std::string place_text(const std::vector<int>& devices) {
  constexpr std::size_t kMostNamed = 4;
  if (devices.size() == 1) return concat("device ", devices[0]);
  return devices.size() > kMostNamed ? concat(devices.size(), " devices")
                                     : concat("devices ", join(devices, ",", [](int device) { return std::to_string(device); }));
}

}  // namespace

Timeline timeline_of(const PlanProblem& problem, const Plan& plan) {
  const PlanFigures figures = figures_of(problem, plan.stages);
  const StageShape shape = shape_of(problem.graph, plan.stages);
  const TableCosts costs = table_costs(figures);
  TableOptions options;
  options.network = network_of(figures);
  options.record = true;
  Timeline timeline = timeline_of(plan.schedule, shape, costs, time_table(plan.schedule, shape, costs, options));
  timeline.title = concat(problem.graph.name, ", planned by ", plan.planner);
  timeline.seconds = true;
  timeline.memory.clear();  // memory counts micro-batches here, not bytes
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    timeline.devices[s] = concat("stage ", s, " (", place_text(plan.stages[s].devices), ")");
  for (Activity& activity : timeline.activities) activity.bytes = 0;  // bytes mean nothing, as links were given their times instead
  return timeline;
}

}  // namespace penstock
