// SPDX-License-Identifier: Apache-2.0
// A plan put on a step: what compile() makes of both.
#pragma once

#include <string>
#include <vector>

#include "penstock/compile.h"
#include "penstock/graph.h"
#include "penstock/plan_file.h"

namespace penstock {

struct PlacedStep {
  Graph step;              // with the plan's stages as marks
  Schedule schedule;       // of these stages, without actors that have nothing to do
  CompileOptions options;  // devices of the actors, and what they hold in shares
};
// The step has as many micro-batches as step_microbatches() says. Throws Error where the plan names other nodes than the step's, and for a
// plan that splits the tensors of its replicas. `table`: another one for the same stages and actors; null is the plan's.
PlacedStep place_step(const Graph& step, const PlanFile& plan, const Schedule* table = nullptr);
Program placed_program(const Graph& step, const PlanFile& plan);
int step_microbatches(const PlanFile& plan);
// The plan, for printing, with the step's micro-batches as one device runs them in place of the table's, which replicas share.
PlanFile by_device(PlanFile plan);

// Without the updates of a plan's table: its step may be timed with updates in it; whether a run has any there is the run's choice.
Schedule without_updates(Schedule schedule);
// The ZeRO level of actors of `devices` devices each, where `local` of them hold the same parameters and `level` was asked for: one device
// shares nothing, and one node no parameters.
int zero_level(int level, int devices, int local);

}  // namespace penstock
