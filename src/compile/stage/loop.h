// SPDX-License-Identifier: Apache-2.0
// The one loop of a step graph.
#pragma once

#include <cstddef>

#include "penstock/graph.h"

namespace penstock {

// Index in step.ops of its accumulate. Throws Error where there is none or more than one.
std::size_t loop_of(const Graph& step);

// Whether the op is a mark of the model's where a stage ends.
inline bool is_boundary(const Op& op) {
  return op.name == "stage_boundary";
}

}  // namespace penstock
