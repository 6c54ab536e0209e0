// SPDX-License-Identifier: Apache-2.0
#include "rules/residuals.h"

#include <map>
#include <set>
#include <utility>

namespace penstock {
namespace {

using Unit = std::pair<std::int32_t, std::int32_t>;  // stage, micro-batch

Unit unit_of(const Action& action) {
  return {action.stage, action.microbatch};
}

bool starts_backward(Kind kind) {
  return kind == Kind::B || kind == Kind::I;
}

// The residuals of an actor that one of the two rules leaves where they are.
class Kept {
 public:
  Kept(const std::optional<RulesResiduals>& rule, const Variables& known, std::int32_t slices)
      : rule_(rule), known_(known), slices_(slices) {}

  // Whether the rule leaves those of an F that begins now; they count from then on.
  bool takes(const Action& forward) {
    if (rule_) {
      known_.s = part_of(forward.stage, slices_).stage;
      std::int64_t& kept = of(forward);
      if (kept >= rule_->beyond.value(known_)) return false;
      ++kept;
    }
    units_.insert(unit_of(forward));
    return true;
  }
  void end(const Action& backward) {
    if (units_.erase(unit_of(backward)) > 0 && rule_) --of(backward);
  }

 private:
  std::int64_t& of(const Action& action) { return count_[rule_->each ? action.stage : 0]; }

  const std::optional<RulesResiduals>& rule_;
  Variables known_;
  std::int32_t slices_;
  std::map<std::int32_t, std::int64_t> count_;  // by stage, or all at 0
  std::set<Unit> units_;
};

}  // namespace

std::vector<Action> with_residuals(const std::vector<Action>& row, const Rules& rules, const Variables& known, std::int32_t slices) {
  if (!rules.recompute && !rules.offload) return row;
  std::set<Unit> with_backward, recomputed, offloaded;
  for (const Action& action : row)
    if (starts_backward(action.kind)) with_backward.insert(unit_of(action));
  Kept kept(rules.recompute, known, slices), on_device(rules.offload, known, slices);
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Action& action = row[i];
    if (action.kind == (rules.split ? Kind::W : Kind::B)) {
      kept.end(action);
      on_device.end(action);
    }
    const auto is_own_backward = [&](std::size_t j) {
      return j < row.size() && starts_backward(row[j].kind) && unit_of(row[j]) == unit_of(action);
    };
    if (action.kind != Kind::F || is_own_backward(i + 1) || !with_backward.contains(unit_of(action))) continue;
    if (!kept.takes(action))
      recomputed.insert(unit_of(action));
    else if (!is_own_backward(i + 2) && !on_device.takes(action))
      offloaded.insert(unit_of(action));
  }
  const auto is_backward_of = [](const std::set<Unit>& units, const Action& action) {
    return starts_backward(action.kind) && units.contains(unit_of(action));
  };
  std::vector<Action> out;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const Action& action = row[i];
    if (i + 1 < row.size() && is_backward_of(offloaded, row[i + 1])) out.push_back({row[i + 1].stage, Kind::RELOAD, row[i + 1].microbatch});
    if (is_backward_of(recomputed, action)) out.push_back({action.stage, Kind::R, action.microbatch});
    out.push_back(action);
    if (action.kind == Kind::F && offloaded.contains(unit_of(action))) out.push_back({action.stage, Kind::OFFLOAD, action.microbatch});
  }
  return out;
}

}  // namespace penstock
