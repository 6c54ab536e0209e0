// Recomputation as a second way to run the nodes of a costed graph.
#pragma once

#include "penstock/plan.h"

namespace penstock {

// Adds to each node whose only way is the first of its costs one that keeps its inputs alone until its backward, which then computes the
// forward again: "activation recomp". Nodes that would hold no less are left as they are.
PlanGraph with_recomputation(PlanGraph graph);

}  // namespace penstock
