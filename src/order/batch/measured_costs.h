// The costs of micro-batches of any shape, from what was measured of some.
#pragma once

#include <string>
#include <vector>

#include "batch/batch_costs.h"
#include "batch/load_fit.h"
#include "penstock/costs.h"

namespace penstock {

// live: on a stage from F to the backward; kept: what F keeps of it where R follows; sent: what F sends on, and gets a gradient of.
struct HeldFit {
  LoadFit live, kept, sent;
};

// Seconds by the fit. What was not measured of a stage: R takes as long as F. Live counts tokens.
StageCostsOf measured_costs(const BatchFit& fit);
// The same with what each stage sends and, where `bytes`, with what it holds in place of what the costs say. No fits: the costs as they
// are.
StageCostsOf holding(StageCostsOf costs, std::vector<HeldFit> held, bool bytes);

// Throws Error unless the fit is of so many stages, and has F, and B or (where `split`) I and W besides, of each; `file`: where it came
// from, with what backend.
void check_fit(const Costs& costs, const std::string& file, const std::string& backend, int stages, bool split);

// Seconds of an action's kind, stage and micro-batch's load in a measured step.
struct ActionTime {
  Kind kind = Kind::F;
  std::int32_t stage = 0;
  BatchLoad load;
  double seconds = 0;
};
std::vector<ActionFit> fit_actions(const std::vector<ActionTime>& times);

}  // namespace penstock
