// SPDX-License-Identifier: Apache-2.0
// Measures batches whose micro-batches have shapes of their own, and fits what any of them takes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "devices/cluster.h"
#include "driver/batch_steps.h"
#include "penstock/costs.h"

namespace penstock {

struct BatchProfileOptions {
  std::vector<std::vector<std::int64_t>> batches;  // samples of each; of different numbers, so that work and shapes differ
  bool split = false, recompute = false;           // also measures each table with I and W in B's place; with an R before each B
  std::int64_t seed = 0;                           // of the data port
  int runs = 3;                                    // of each program, of which the first is not observed
  std::function<void(const std::string& text)> progress{};
};

// Plans, lowers and runs each batch on the cluster. An action takes all that keeps its device since the one before it: inputs and messages
// too. Throws what the cluster and the planner throw.
BatchFit measure_batches(Cluster& cluster, BatchSteps& steps, const StateSource& state, const BatchProfileOptions& options);

// The times of a recorded step's actions, by the loads of its micro-batches or, in a plan of slices, of these. Each share of a micro-batch
// has a time of its own: that of the slowest of the devices that compute it together.
std::vector<ActionTime> action_times(const Program& program, const PlannedBatch& plan, const StepResult& result);

}  // namespace penstock
