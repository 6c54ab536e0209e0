// SPDX-License-Identifier: Apache-2.0
#include "plan/fitting_plan.h"

#include <algorithm>
#include <optional>

#include "base/numbers.h"
#include "base/text.h"
#include "cost/cost_model.h"
#include "cost/smallest_memory.h"
#include "cost/time_limit.h"
#include "penstock/error.h"
#include "planners/planner_list.h"

namespace penstock {
namespace {

constexpr double kFirst = 0.7, kNext = 0.5;    // shares of the time that is left, in which planning first and again may search
constexpr int kRounds = 8;                     // of planning again with less memory
constexpr double kLess = 0.98;                 // of the memory before, at most
constexpr std::size_t kMostActions = 1 << 13;  // of the table of a plan that is compiled: more would take longer than planning

std::size_t actions_of(const PlanFile& plan) {
  std::size_t actions = 0;
  for (const auto& row : plan.schedule.actors) actions += row.size();
  return actions * at(plan.split.devices());
}

std::optional<Program> program_of(const MergedProblem& of, PlannedModel& planned) {
  const PlanFile& plan = planned.file;
  if (!planned.cannot_run.empty() || actions_of(plan) > kMostActions) return {};
  try {
    return of.program(plan);
  } catch (const Error& error) {
    planned.cannot_run = error.what();
    return {};
  }
}

// Sets peak_bytes to what the devices hold in the plan's program, where one says it.
void take_program(const MergedProblem& of, PlannedModel& planned) {
  PlanFile& plan = planned.file;
  const std::optional<Program> program = program_of(of, planned);
  if (!program) return;
  std::size_t next = 0;  // the program's devices are numbered by the rows of the table
  for (std::size_t actor = 0; actor < plan.schedule.actors.size(); ++actor) {
    const std::vector<Action>& row = plan.schedule.actors[actor];
    if (row.empty()) continue;
    double most = 0;
    for (const int device : plan.stages[at(row[0].stage)].devices) {
      plan.peak_bytes[at(device)] = static_cast<double>(program->devices.at(next++).device_bytes());
      most = std::max(most, plan.peak_bytes[at(device)]);
    }
    for (const Action& action : row) plan.stages[at(action.stage)].bytes = most;
    if (planned.plan.degrees) planned.plan.degrees->results[0].peak_bytes[actor] = most;
  }
  planned.plan.peak_bytes = plan.peak_bytes;
  if (planned.plan.degrees) planned.plan.degrees->results[0].memory = std::ranges::max(plan.peak_bytes);
  planned.is_compiled = true;
}

// The largest share of a device's memory that its bytes are.
double share_of(const std::vector<double>& bytes, const ClusterSpec& cluster) {
  double share = 0;
  for (std::size_t d = 0; d < cluster.devices.size(); ++d) share = std::max(share, bytes[d] / cluster.devices[d].memory);
  return share;
}

struct Fitting {
  const StepOfSize& step;
  const MergedProblem& of;
  const PlannerInfo& planner;
  PlanOptions options;
  double counted = 0;        // share of the memory that the last plan's planner counted
  double least = kInfinity;  // bytes of the fullest device in the smallest program so far

  bool keeps(const PlannedModel& plan) const { return !plan.is_compiled || fits(share_of(plan.file.peak_bytes, of.problem.cluster), 1); }

  // The plan for devices of so much memory, with what its program holds.
  PlannedModel plan(const std::function<double(double)>& memory) {
    MergedProblem smaller = of;
    for (ClusterDevice& device : smaller.problem.cluster.devices) device.memory = memory(device.memory);
    PlannedModel out = counted_model(step, smaller, planner, options);
    out.problem.cluster = of.problem.cluster;
    counted = share_of(out.file.peak_bytes, of.problem.cluster);
    take_program(of, out);
    if (out.is_compiled) least = std::min(least, std::ranges::max(out.file.peak_bytes));
    return out;
  }

  // The plan that the planner counts least memory for, where its program fits: devices of so many bytes would do by that count.
  std::optional<PlannedModel> smallest(double needed) {
    constexpr double kRounding = 1 + 1e-5;
    try {
      PlannedModel out = plan([&](double) { return needed * kRounding; });
      return out.is_compiled && keeps(out) ? std::optional(std::move(out)) : std::nullopt;
    } catch (const Error&) {
      return {};
    }
  }

  [[noreturn]] void fail() const { fail_memory(of.problem.graph.name, weakest(of.problem.cluster).memory, least, /*least=*/false); }
};

// The fastest of `best`, for which there was less memory, and of what each planner by itself plans for all of it: where the program of the
// fastest plan does not fit, another's may.
PlannedModel or_by_another(const Fitting& fitting, PlannedModel best, TimeLimit& limit) {
  PlanOptions options = fitting.options;
  for (const PlannerInfo& other : planners()) {
    if (other.searches || other.equal_groups || limit.is_over()) continue;
    options.seconds = kNext * limit.left();
    try {
      PlannedModel alone = counted_model(fitting.step, fitting.of, other, options);
      if (alone.file.predicted_time >= best.file.predicted_time) continue;
      take_program(fitting.of, alone);
      if (!alone.cannot_run.empty() || !fitting.keeps(alone)) continue;
      alone.file.planner = concat(fitting.planner.name, " (", other.name, ")");
      best = std::move(alone);
    } catch (const Error&) {
      // It finds nothing that fits.
    }
  }
  return best;
}

}  // namespace

PlannedModel planned_model(const StepOfSize& step, const MergedProblem& given, const PlannerInfo& planner, const PlanOptions& options) {
  MergedProblem of = given;
  if (planner.lean_ways) {
    const bool swaps = weakest(of.problem.cluster).host.has_value();
    add_lean_ways(of.problem.graph, swaps, [&](int size) { return mark_stages(step(size), of.merged); });
  }
  if (!of.program || std::isinf(weakest(of.problem.cluster).memory)) return counted_model(step, of, planner, options);
  Fitting fitting{step, of, planner, options};
  TimeLimit limit(options.seconds, options.clock);
  double share = 1;  // of the memory that the planner may take
  for (int round = 0; round < kRounds; ++round) {
    fitting.options.seconds = (round == 0 ? kFirst : kNext) * limit.left();
    try {
      PlannedModel found = fitting.plan([&](double memory) { return share * memory; });
      if (fitting.keeps(found)) return round > 0 && planner.races ? or_by_another(fitting, std::move(found), limit) : std::move(found);
      share = std::min(kLess * share, fitting.counted / share_of(found.file.peak_bytes, of.problem.cluster));
    } catch (const MemoryError& error) {
      if (std::optional<PlannedModel> found = fitting.smallest(error.needed)) return std::move(*found);
      if (fitting.least == kInfinity) throw;
      break;
    } catch (const Error&) {
      if (fitting.least == kInfinity) throw;
      break;
    }
  }
  fitting.fail();
}

}  // namespace penstock
