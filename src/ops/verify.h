// The graph verifier: structure (ir) and types (ops).
#pragma once

#include "ir/graph.h"

namespace penstock {

// verify_structure, and every known op's result types as its definition infers them, loop bodies included.
// Throws Error naming graph, op and the two types.
void verify(const Graph& graph);

}  // namespace penstock
