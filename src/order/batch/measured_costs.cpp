// SPDX-License-Identifier: Apache-2.0
#include "batch/measured_costs.h"

#include <algorithm>
#include <map>

#include "base/numbers.h"
#include "base/text.h"
#include "penstock/error.h"

namespace penstock {
namespace {

bool has(const BatchFit& fit, Kind kind, std::int32_t stage) {
  return std::ranges::any_of(fit.actions, [&](const ActionFit& action) { return action.kind == kind && action.stage == stage; });
}

}  // namespace

StageCostsOf measured_costs(const BatchFit& fit) {
  return [fit](const BatchLoad& load) {
    std::vector<StageCosts> stages(at(fit.stages));
    for (const ActionFit& action : fit.actions) stages[at(action.stage)].of(action.kind) = LoadFit{action.per_amount}(load);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (!has(fit, Kind::R, static_cast<std::int32_t>(s))) stages[s].of(Kind::R) = stages[s].of(Kind::F);
      stages[s].live = load.input + load.target;
    }
    return stages;
  };
}

StageCostsOf holding(StageCostsOf costs, HeldFits held, bool bytes) {
  if (held.empty()) return costs;
  return [costs = std::move(costs), held = std::move(held), bytes](const BatchLoad& load) {
    std::vector<StageCosts> stages = costs(load);
    const std::vector<HeldFit>&own = held.at(load.shape.recompute), &plain = held.at(Recompute::none);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      StageCosts& stage = stages[s];
      stage.forward_bytes = stage.backward_bytes = own[s].sent(load);
      const int layers = load.shape.again.empty() ? 0 : load.shape.again[s];
      for (const Kind kind : {Kind::B, Kind::I}) stage.of(kind) += (own[s].again + layers * own[s].layer_again) * stage.of(Kind::F);
      const double live = own[s].live(load) - layers * own[s].layer(load), most = plain[s].live(load);
      if (bytes) stage.kept = std::min(live, own[s].kept(load));
      stage.live = bytes ? live : stage.live * (most > 0 ? live / most : 1);
    }
    return stages;
  };
}

const BatchFit& needed_fit(const Costs& costs, const std::string& file, const NeededFit& needed) {
  const auto& [backend, stages, split, under] = needed;
  const std::string hint = concat("penstock profile CONFIG with the same [batch], stages, mesh and backend measures them, --out ", file);
  const auto found = costs.batches.find(backend);
  if (found == costs.batches.end())
    throw Error(concat(file, " has no times of batches that were planned one by one, with backend ", backend),
                {concat("it was measured for ", costs.model)}, hint);
  const BatchFit& fit = found->second;
  if (fit.stages != stages) throw Error(concat(file, " has times of batches for ", fit.stages, " stages, and here are ", stages), {}, hint);
  const auto shown = [](const std::string& setting) { return setting.empty() ? "one device for each actor" : setting; };
  if (fit.under != under)
    throw Error(concat(file, " has times of batches under ", shown(fit.under), ", and here is ", shown(under)), {}, hint);
  for (std::int32_t s = 0; s < stages; ++s) {
    for (const Kind kind : {Kind::F, Kind::B, Kind::I, Kind::W}) {
      const bool is_whole = kind == Kind::F || kind == Kind::B;
      const bool is_needed = is_whole || (split && (kind == Kind::W || s > 0));  // the first stage's I has nothing to do
      if (is_needed && !has(fit, kind, s)) throw Error(concat(file, " has no time of ", name(kind), " of stage ", s), {}, hint);
    }
  }
  return fit;
}

std::vector<ActionFit> fit_actions(const std::vector<ActionTime>& times) {
  std::map<std::pair<std::int32_t, Kind>, std::vector<LoadPoint>> points;
  for (const ActionTime& time : times) points[{time.stage, time.kind}].push_back({time.load, time.seconds});
  std::vector<ActionFit> out;
  for (const auto& [which, of_action] : points) out.push_back({which.second, which.first, fit_loads(of_action).per_amount});
  return out;
}

}  // namespace penstock
