// SPDX-License-Identifier: Apache-2.0
// Buffers that a module updates, carried from micro-batch to micro-batch.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

// An output of a joint graph that is the next value of the input of this name.
struct BufferOutput {
  std::size_t output;
  std::string name;
};

// The way in which a micro-batch changes a buffer: its next value is keep * value + added.
struct CarriedBuffer {
  std::string name;
  double keep = 1;                        // 0: nothing of the old value stays
  std::optional<std::size_t> added = {};  // the output that is added, of the buffer's type; none: zero
};

// A joint graph that gives what it adds to buffers, and reads none of them.
struct CarriedBuffers {
  Graph joint;  // its outputs are the old ones but for the buffers' next values, then what is added
  std::vector<CarriedBuffer> buffers;
};

// Running statistics and counters move by an amount that does not depend on their value. So the micro-batches may be run in any order: with
// m of them the last value is keep^m * value + the sum of keep^(m - 1 - i) * added_i. Works on renamed graphs (rename.h). Throws Error,
// naming buffer, op and module, for a buffer that is updated in another way, or that something else than its update reads.
CarriedBuffers carried_buffers(const Graph& joint, const std::vector<BufferOutput>& buffers);

}  // namespace penstock
