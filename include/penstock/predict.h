// SPDX-License-Identifier: Apache-2.0
// Predicts in one call the time that a program will take: from published figures, or from a profile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/costs.h"
#include "penstock/program.h"
#include "penstock/timeline.h"

namespace penstock {

// The time and memory that a simulated step of a program takes.
struct Prediction {
  double seconds = 0;                // of a step
  double bubble = 0;                 // share of the devices' time in which they do not compute
  double lower_bound = 0;            // seconds that no order of the same work could beat
  std::vector<std::int64_t> memory;  // bytes of each device: its arenas, and what kernels take beside them where that was measured
  Timeline timeline;                 // of that step, in seconds
};

// By published figures of a device and of the link between any two ("v100", "nvlink3": `penstock simulate --help` lists them). Throws Error
// with the nearest name for an unknown one.
Prediction predict(const Program& program, const std::string& device, const std::string& link);
// By what `penstock profile` measured. backend: threads or gloo. file: where the costs are from, for messages. Throws Error where costs
// lack a task or link, with the command that would measure it.
Prediction predict(const Program& program, const Costs& costs, const std::string& backend = "threads",
                   const std::string& file = "costs.json");

}  // namespace penstock
