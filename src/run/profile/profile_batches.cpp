// SPDX-License-Identifier: Apache-2.0
#include "profile/profile_batches.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/text.h"
#include "profile/profile.h"

namespace penstock {
namespace {

struct MeasuredBatch {
  BatchStep step;
  double seconds = 0;
};

// The table with whole backwards (B); with I and W in their place (W); or with an R before each (R).
Schedule with_backward(const Schedule& table, Kind kind) {
  Schedule out{.name = table.name, .actors = {}, .cells = {}, .slices = table.slices};
  for (const auto& row : table.actors) {
    std::vector<Action>& actions = out.actors.emplace_back();
    for (const Action& action : row) {
      if (action.kind == Kind::F) actions.push_back(action);
      if (action.kind != Kind::B && action.kind != Kind::I) continue;
      if (kind == Kind::R) actions.push_back({action.stage, Kind::R, action.microbatch});
      actions.push_back({action.stage, kind == Kind::W ? Kind::I : Kind::B, action.microbatch});
      if (kind == Kind::W) actions.push_back({action.stage, Kind::W, action.microbatch});
    }
  }
  return out;
}

class BatchProfiler {
 public:
  BatchProfiler(Cluster& cluster, BatchSteps& steps, const StateSource& state, const BatchProfileOptions& options)
      : cluster_(cluster), steps_(steps), state_(state), options_(options) {}

  BatchFit fit() {
    for (std::size_t i = 0; i < options_.batches.size(); ++i) {
      if (options_.progress) options_.progress(concat("batch ", i + 1, " of ", options_.batches.size()));
      const std::vector<std::int64_t> samples = steps_.in_teams(options_.batches[i]);
      PlannedBatch plan = steps_.step(samples).plan;
      for (BatchLoad& load : plan.loads) {
        load.shape.recompute = Recompute::none;
        load.shape.again.clear();
        for (BatchLoad& slice : load.slices) slice.shape.again.clear();
      }
      for (const auto& [kind, is_wanted] : {std::pair{Kind::B, true}, {Kind::W, options_.split}, {Kind::R, options_.recompute}}) {
        if (!is_wanted) continue;
        plan.schedule = with_backward(plan.schedule, kind);
        measure(steps_.lowered(samples, plan));
      }
    }
    BatchFit out{.stages = static_cast<std::int32_t>(measured_[0].step.plan.schedule.actors.size()), .actions = fit_actions(times_)};
    const StageCostsOf costs = measured_costs(out);
    std::vector<double> beyond, off;
    for (const MeasuredBatch& batch : measured_)
      beyond.push_back(batch.seconds - time_batch(batch.step.plan, costs, batch.step.network).makespan);
    out.beyond = std::max(0.0, sample_of(beyond).median);
    for (std::size_t i = 0; i < measured_.size(); ++i) off.push_back(std::abs(beyond[i] - out.beyond) / measured_[i].seconds);
    out.spread = sample_of(off).median;
    return out;
  }

 private:
  void measure(BatchStep step) {
    const std::uint64_t program = cluster_.load(*step.program);
    if (measured_.empty()) cluster_.set_state(state_);
    std::vector<double> seconds;
    for (int run = 0; run < options_.runs; ++run) {
      StepInput input;
      input.step = ++step_;
      input.seed = options_.seed;
      input.samples = step.samples;
      input.begins = step.begins;
      const StepResult result = cluster_.step(program, input, /*record_spans=*/true);
      if (run == 0) continue;
      const std::vector<ActionTime> times = action_times(*step.program, step.plan, result);
      times_.insert(times_.end(), times.begin(), times.end());
      seconds.push_back(result.seconds);
    }
    measured_.push_back({std::move(step), sample_of(seconds).median});
    cluster_.unload(program);
  }

  Cluster& cluster_;
  BatchSteps& steps_;
  const StateSource& state_;
  const BatchProfileOptions& options_;
  std::int64_t step_ = 0;
  std::vector<MeasuredBatch> measured_;
  std::vector<ActionTime> times_;
};

}  // namespace

std::vector<ActionTime> action_times(const Program& program, const PlannedBatch& plan, const StepResult& result) {
  using Seconds = std::map<std::tuple<std::int32_t, Kind, std::int32_t>, double>;  // by stage, kind and micro-batch of the step
  Seconds slowest;                                                                 // of the devices that compute an action together
  for (const DeviceReport& report : result.devices) {
    Seconds own;
    double since = 0;
    for (const Span& span : report.spans) {
      if (span.waited) continue;
      const Instruction& i = program.devices[span.device].instructions[span.instruction];
      since += 1e-9 * static_cast<double>(span.end - span.begin);
      if (i.opcode != Opcode::run) continue;
      // Runs before and after the micro-batches are the step's own.
      if (i.action && i.microbatch >= 0) own[{i.stage, i.kind, i.microbatch}] += since;
      since = 0;
    }
    for (const auto& [which, sum] : own) slowest[which] = std::max(slowest[which], sum);
  }
  // Along a data axis each of the plan's micro-batches is as many of the step's, which follow on each other and have its shape.
  const std::int32_t shares = program.microbatches / static_cast<std::int32_t>(plan.loads.size());
  std::vector<ActionTime> out;
  for (const auto& [which, sum] : slowest) {
    const auto [number, kind, microbatch] = which;
    const StagePart part = part_of(number, plan.schedule.slices);
    const BatchLoad& load = plan.loads[static_cast<std::size_t>(microbatch / shares)];
    out.push_back({kind, part.stage, load.slices.empty() ? load : load.slices[static_cast<std::size_t>(part.slice)], sum});
  }
  return out;
}

BatchFit measure_batches(Cluster& cluster, BatchSteps& steps, const StateSource& state, const BatchProfileOptions& options) {
  return BatchProfiler(cluster, steps, state, options).fit();
}

}  // namespace penstock
