// List scheduling in time: whenever an actor is free it starts the best of the actions that are ready and allowed.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "penstock/rules.h"
#include "simulate/table.h"

namespace penstock {

// Stages on actors. Micro-batch m takes way m modulo ways: actors[way][stage].
struct Placed {
  StageShape shape;
  std::vector<std::vector<std::int32_t>> actors;
  std::int32_t actor_count = 1;
};

struct EngineLimit {
  std::string text;  // as the rules have it, for messages
  bool each = false, until_input = false;
  std::function<std::int64_t(std::int32_t actor, std::int32_t stage)> most;
};

struct EngineOrder {
  RulesOrder::Way way = RulesOrder::Way::groups;
  std::vector<std::int64_t> size;  // of groups, on each actor
};

struct Listed {
  Schedule schedule;
  double makespan = 0;
};

enum SchedulePhase { kWarmUp, kSteady, kDrain, kSchedulePhases };

struct EngineRules {
  std::string name;
  bool split = false;
  std::array<Preference, kSchedulePhases> phases;
  std::array<EngineOrder, 3> orders;  // of F; B or I; W
  std::vector<EngineLimit> limits;
};

// Costs of all stages of the shape, finite and not negative; of the network latency, bandwidth and medium count, as in time_table, whose
// times for the resulting table are the engine's. n actions, each on an actor with c stages: O(n (c + log n)). Throws Error where nothing
// may run before all is done.
Listed schedule_by(const EngineRules& rules, const Placed& placed, std::int32_t microbatches, const TableCosts& costs,
                   const Network& network = {});

}  // namespace penstock
