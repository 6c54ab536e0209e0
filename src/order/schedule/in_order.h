// The engine's policy of given orders: actors run F and I as listed, and W where they would wait.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/engine.h"

namespace penstock {

struct InOrder {
  // By actor: lists of F and I, each in the order in which it will run. Of the lists whose first action can run, the first goes on;
  // where none can, the oldest I's W.
  std::vector<std::vector<std::vector<Action>>> lists{};
  std::int32_t live = 0;   // so many forwards at most wait for their W on an actor
  bool alternate = false;  // after an action of its first list an actor looks at the first list last
  // An actor's k-th I waits for so many of its forwards. Empty: for its own.
  std::vector<std::int32_t> forwards_before_input{};
};

// The table of stages in a chain whose backward is split. A limit under which nothing can run is a bug.
Schedule in_order(const InOrder& order, const EngineWork& work);

}  // namespace penstock
