// SPDX-License-Identifier: Apache-2.0
// A step in which any forward ops of the loop are to be computed again, or make what OFFLOAD moves.
#pragma once

#include <algorithm>
#include <memory>

#include "penstock/compile.h"
#include "penstock/graph.h"
#include "support/random_schedule.h"
#include "transform/passes.h"

namespace penstock::test {

// Each op has each mark with this probability.
inline Graph with_random_marks(Random& random, Graph step, double marked) {
  for (Op& loop : step.ops) {
    if (!loop.body) continue;
    Graph body = *loop.body;
    for (Op& op : body.ops)
      for (const char* mark : {kRecompute, kOffload})
        if (op.phase == Phase::forward && coin(random, marked)) op.attributes[mark] = true;
    loop.body = std::make_shared<const Graph>(std::move(body));
  }
  return step;
}

inline Recompute drawn_recomputation(Random& random) {
  return coin(random, 0.6) ? Recompute::none : coin(random, 0.5) ? Recompute::selective : Recompute::inputs;
}

}  // namespace penstock::test
