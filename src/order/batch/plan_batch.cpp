// SPDX-License-Identifier: Apache-2.0
#include "batch/plan_batch.h"

#include <algorithm>
#include <optional>

#include "base/invariant.h"
#include "batch/balance.h"
#include "batch/inject.h"

namespace penstock {
namespace {

// The micro-batches of these shapes in a mode; none where one of them does not run in it.
std::optional<MicroBatches> in_mode(const BatchProblem& problem, const RecomputeMode& mode, const std::vector<BatchShape>& shapes) {
  MicroBatches work;
  for (const BatchShape& shape : shapes) {
    const std::optional<ShapeCost> cost = mode.costs(shape);
    if (!cost || cost->stored > problem.available || cost->peak > problem.available) return std::nullopt;
    work.forward.push_back(cost->time / 3);
    work.backward.push_back(cost->time * 2 / 3);
    work.size.push_back(cost->stored);
  }
  return work;
}

// `micro_batches`: places in `shapes`, longest time first.
ReplicaPlan plan_replica(const BatchProblem& problem, const std::vector<BatchShape>& shapes,
                         const std::vector<std::size_t>& micro_batches) {
  const auto actors = static_cast<int>(problem.cut.stages), count = static_cast<int>(micro_batches.size());
  std::vector<BatchShape> own;
  for (const std::size_t m : micro_batches) own.push_back(shapes[m]);
  ReplicaPlan best;
  best.time.makespan = kInfinity;
  for (std::size_t mode = 0; mode < problem.modes.size(); ++mode) {
    const std::optional<MicroBatches> work = in_mode(problem, problem.modes[mode], own);
    if (!work) continue;
    const MicroBatchGroups groups = groups_of_like(*work, usual_groups(work->count()), problem.seed);
    Injection injection = inject(actors, *work, groups, problem.available, problem.latency);
    if (injection.time.makespan < best.time.makespan) {
      best = {{}, mode, std::move(injection.schedule), std::move(injection.time)};
      for (const std::size_t place : injection.order) best.micro_batches.push_back(micro_batches[place]);
    }
    Schedule schedule = make_schedule("1f1b", {.actors = actors, .microbatches = count});
    TableTime time = time_micro_batches(schedule, *work, problem.latency);
    if (time.makespan < best.time.makespan && time.peak() <= problem.available)
      best = {micro_batches, mode, std::move(schedule), std::move(time)};
  }
  invariant(best.time.makespan < kInfinity, "the mode of the cut keeps the memory");
  return best;
}

}  // namespace

BatchPlan plan_batch(const BatchProblem& problem) {
  BatchPlan plan{.fitted = fit_batch(problem.samples, problem.order, problem.modes, problem.available, problem.cut), .replicas = {}};
  const std::vector<BatchShape>& shapes = plan.fitted.cut.shapes;
  std::vector<double> times;
  for (const BatchShape& shape : shapes) times.push_back(problem.modes[plan.fitted.mode].costs(shape)->time);
  for (const auto& micro_batches : balance(times, static_cast<std::size_t>(problem.cut.replicas))) {
    plan.replicas.push_back(micro_batches.empty() ? ReplicaPlan{} : plan_replica(problem, shapes, micro_batches));
    plan.time = std::max(plan.time, plan.replicas.back().time.makespan);
  }
  return plan;
}

}  // namespace penstock
