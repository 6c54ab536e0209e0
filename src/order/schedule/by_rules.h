// SPDX-License-Identifier: Apache-2.0
// The engine's policy of rules: which kinds an actor prefers in each phase, in which order it takes those of a kind, and limits of what is
// in flight.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/rules.h"
#include "schedule/engine.h"

namespace penstock {

struct EngineLimit {
  std::string text{};  // as the rules have it, for messages
  bool each = false, until_input = false;
  std::function<std::int64_t(std::int32_t actor, std::int32_t stage)> most{};
};

struct EngineOrder {
  RulesOrder::Way way = RulesOrder::Way::bunches;
  std::vector<std::int64_t> size{};  // of bunches, on each actor; empty: 1
};

enum SchedulePhase { kWarmUp, kSteady, kDrain, kSchedulePhases };

struct EngineRules {
  std::string name;
  std::array<Preference, kSchedulePhases> phases;
  std::array<EngineOrder, 3> orders{};  // of F; B or I; W
  std::vector<EngineLimit> limits{};
};

// n actions, each on an actor with c stages: O(n (c + log n)). Throws Error where nothing may run before all is done.
Listed schedule_by(const EngineRules& rules, const EngineWork& work);

}  // namespace penstock
