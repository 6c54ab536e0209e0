// SPDX-License-Identifier: Apache-2.0
// The engine's policies of given orders.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/engine.h"

namespace penstock {

// Actors run F and I as listed, and W where they would wait.
struct InOrder {
  // By actor: lists of F and I, each in the order in which it will run. Of the lists whose first action can run, the first goes on;
  // where none can, the oldest I's W.
  std::vector<std::vector<std::vector<Action>>> lists{};
  std::int32_t live = 0;  // so many forwards at most wait for their W on an actor
};

// The table of stages in a chain whose backward is split. A limit under which nothing can run is a bug.
Schedule in_order(const InOrder& order, const EngineWork& work);

// Actors run their rows in order and, between, all other actions of the work, each actor the oldest that can run first. `gives_way`:
// whether an action of a row, where it can run too, lets the others go first. Rows for which something can never run are a bug.
Schedule in_rows(const Schedule& rows, const EngineWork& work, bool (*gives_way)(const Action& action));

}  // namespace penstock
