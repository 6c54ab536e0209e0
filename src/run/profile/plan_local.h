// SPDX-License-Identifier: Apache-2.0
// Plans of a configuration's model by measured costs: nodes and links are measured on this machine, and then the best plans themselves.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "config/plan_model.h"
#include "profile/workbench.h"

namespace penstock {

struct LocalPlanning {
  std::string planner = "best";
  PlanOptions options = {};
  std::vector<int> sizes = {};        // of micro-batches to choose from, in samples
  int nodes = 64;                     // of the model, at most
  std::optional<double> memory = {};  // bytes of each device; none: unlimited
  int candidates = 3, rounds = 10;    // plans to measure, and steps of each
  std::function<void(const std::string& text)> progress{};
};

// For pipeline.actors threads, the best plan of each size, of which the best are then measured whole: the fastest first. Throws Error where
// none fits, and where the configuration's backend is not threads.
std::vector<PlannedModel> plan_locally(const Workbench& bench, const LocalPlanning& planning);

}  // namespace penstock
