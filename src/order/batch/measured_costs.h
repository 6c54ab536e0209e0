// SPDX-License-Identifier: Apache-2.0
// The costs of micro-batches of any shape, from what was measured of some.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "batch/batch_costs.h"
#include "batch/load_fit.h"
#include "penstock/costs.h"

namespace penstock {

// live: on a stage from F to the backward; kept: what F keeps of it where R follows; sent: what F sends on, and gets a gradient of; again:
// what the backward computes again, as a share of F's time. Each layer that a backward computes again besides (BatchShape::again) saves
// `layer` of `live`, and takes `layer_again`.
struct HeldFit {
  LoadFit live, kept, sent;
  double again = 0;
  LoadFit layer = {};
  double layer_again = 0;
};
using HeldFits = std::map<Recompute, std::vector<HeldFit>>;  // by stage, of micro-batches whose backwards compute so much again

// Seconds by the fit. What was not measured of a stage: R takes as long as F. Live counts tokens.
StageCostsOf measured_costs(const BatchFit& fit);
// The same with what each stage sends and computes again and, where `bytes`, with what it holds in place of what the costs say; else it
// holds as much less than that as the fits say. No fits: the costs as they are.
StageCostsOf holding(StageCostsOf costs, HeldFits held, bool bytes);

// A run needs measured costs of this.
struct NeededFit {
  std::string backend;
  int stages = 1;
  bool split = false;      // I and W besides B
  std::string under = {};  // BatchFit::under
};
// Throws Error unless `file` has times of so many stages, of F and of what else is needed, measured so.
const BatchFit& needed_fit(const Costs& costs, const std::string& file, const NeededFit& needed);

// Seconds of an action's kind, stage and micro-batch's load in a measured step.
struct ActionTime {
  Kind kind = Kind::F;
  std::int32_t stage = 0;
  BatchLoad load;
  double seconds = 0;
};
std::vector<ActionFit> fit_actions(const std::vector<ActionTime>& times);

}  // namespace penstock
