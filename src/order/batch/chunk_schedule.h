// SPDX-License-Identifier: Apache-2.0
// The order of the chunks of long sequences in a pipeline: InfiniPipe (Wang et al., 2509.21275, sections III to V).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// The table of sequences with so many chunks each, in that order; actor s has stage s, and micro-batches are the chunks of all sequences
// one after the other. Forwards go in order, as a chunk attends to those before it; the backwards of a sequence go in reverse, as a chunk's
// keys get gradients from those behind it. Stage i begins with actors - 1 - i + `warm_up` forwards, and that many chunks live; the
// `warm_up` is the most chunks of a sequence, or what is given (1 or more). A backward that still lacks its forward waits for the forwards
// up to it.
Schedule chunk_schedule(int actors, const std::vector<int>& chunks, int warm_up = 0);

// The same table with sequences as its micro-batches and their chunks as slices: as many as the most of a sequence, of which the others
// have no actions of the last ones. Of [4, 1] on two actors, stage by stage:
//
//   actor 0:  0.0F0 0.1F0 0.2F0 0.3F0 0.0F1 0.3B0       0.2B0 0.1B0 0.0B0       0.0B1
//   actor 1:        1.0F0 1.1F0 1.2F0 1.3F0 1.3B0 1.0F1 1.2B0 1.1B0 1.0B0 1.0B1
Schedule sequence_schedule(int actors, const std::vector<int>& chunks);
// The same of groups of these sequences, by number, one group after the other: each actor begins with a group when it has done all of its
// work on the one before.
Schedule sequence_schedule(int actors, const std::vector<int>& chunks, const std::vector<std::vector<std::size_t>>& groups);

}  // namespace penstock
