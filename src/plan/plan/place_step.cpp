// SPDX-License-Identifier: Apache-2.0
#include "plan/place_step.h"

#include <algorithm>

#include "base/text.h"
#include "lower/lower.h"
#include "penstock/error.h"
#include "plan/merged_nodes.h"
#include "transform/passes.h"

namespace penstock {
namespace {

// Without actors that have nothing to do.
void place_actors(const PlanFile& plan, Schedule table, PlacedStep& out) {
  const std::vector<int> devices = devices_of_actors(plan);
  for (std::size_t a = 0; a < devices.size(); ++a)
    if (!plan.schedule.actors[a].empty()) out.options.devices.push_back(devices[a]);
  std::erase_if(table.actors, [](const std::vector<Action>& row) { return row.empty(); });
  out.options.local = plan.local;
  out.options.zero = zero_level(std::max(plan.zero, 0), shares_of(out.options.devices), plan.local);
  out.schedule = out.options.zero >= 2 && !has_gathers(table) ? with_gathers(std::move(table), /*turns=*/true) : std::move(table);
}

}  // namespace

Schedule without_updates(Schedule schedule) {
  for (auto& row : schedule.actors) std::erase_if(row, [](const Action& action) { return action.kind == Kind::U; });
  schedule.cells.clear();
  return schedule;
}

int zero_level(int level, int devices, int local) {
  if (devices == 1) return 0;
  return devices == local ? std::min(level, 1) : level;
}

int step_microbatches(const PlanFile& plan) {
  return plan.microbatches * shares_of(devices_of_actors(plan));
}

Program placed_program(const Graph& step, const PlanFile& plan) {
  const PlacedStep placed = place_step(step, plan);
  return compile(placed.step, placed.schedule, placed.options);
}

PlanFile by_device(PlanFile plan) {
  const int microbatches = step_microbatches(plan), parts = microbatches / plan.microbatches, size = plan.samples / microbatches;
  if (parts == 1 || plan.samples % microbatches != 0) return plan;
  const auto replicas = [&](const PlanFile::Stage& stage) { return static_cast<double>(stage.devices.size()) / plan.split.devices(); };
  for (PlanFile::Link& link : plan.links) {
    const auto from = static_cast<std::size_t>(link.from), to = static_cast<std::size_t>(link.to);
    link.bytes /= parts;
    link.seconds *= std::min(replicas(plan.stages[from]), replicas(plan.stages[to])) / parts;
  }
  for (PlanFile::Stage& stage : plan.stages) {
    const double share = size * replicas(stage) / stage.micro_batch;
    stage.forward *= share;
    stage.backward *= share;
    stage.micro_batch = size;
  }
  plan.microbatches = microbatches;
  return plan;
}

PlacedStep place_step(const Graph& traced, const PlanFile& plan, const Schedule* table) {
  if (plan.split.devices() > 1)
    throw Error(concat(plan.file, " splits the tensors of its replicas"), {}, "plan with the limits tensor=1,context=1");
  const Graph step = eliminate_dead_code(drop_constraints(traced));  // dead ops belong to no stage
  check_nodes(plan, nodes_of(step));
  PlacedStep out{.step = mark_stages(step, plan), .schedule = {}, .options = {}};
  place_actors(plan, without_updates(table ? *table : renumbered(plan, plan.schedule, prepare_stages(out.step).stages)), out);
  return out;
}

}  // namespace penstock
