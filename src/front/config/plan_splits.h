// SPDX-License-Identifier: Apache-2.0
// The work that a device has to do where each replica's tensors are split over several, as planner degrees chooses among.
#pragma once

#include <vector>

#include "config/config.h"
#include "plan/merged_nodes.h"

namespace penstock {

// The configuration with its tensors split so, by its [layout].
Config split_config(Config config, const Split& split);

// All splits that the model allows, over at most so many devices, which divide `devices`: heads, mlp and vocab over tensor, and then maybe
// positions too; or positions over context. `only`: as asked for; where none is possible, throws Error for the last.
std::vector<Split> possible_splits(const Config& config, const ModelRegistry& models, int devices, int most, const DegreesLimits& only);

// The graph of the model (`whole`) as the first device of a split has it, at each size of micro-batches.
PlanSplit model_split(const Config& config, const ModelRegistry& models, const MergedNodes& merged, const std::vector<int>& sizes,
                      const DeviceModel& device, const PlanGraph& whole, const Split& split);

}  // namespace penstock
