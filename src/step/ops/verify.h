// SPDX-License-Identifier: Apache-2.0
// The graph verifier: structure (checked by ir) and types (checked by ops).
#pragma once

#include "penstock/graph.h"

namespace penstock {

// Checks the structure (verify_structure), and the result types of every known op against what its definition infers, loop bodies included.
// Throws Error naming graph, op and the two types.
void verify(const Graph& graph);

}  // namespace penstock
