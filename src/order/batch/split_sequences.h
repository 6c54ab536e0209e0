// SPDX-License-Identifier: Apache-2.0
// Cuts long sequences into chunks of equal time and packs short ones: InfiniPipe (2509.21275, section IV).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/numbers.h"
#include "batch/batch_costs.h"

namespace penstock {

// s tokens behind c others of their sequence take a1 ((c + s)^2 - c^2) + a2 s; `fixed`: what any number of them takes besides.
struct SequenceCosts {
  double a1 = 0, a2 = 0, fixed = 0;

  double time(double before, double tokens) const { return a1 * tokens * (2 * before + tokens) + a2 * tokens; }
};

// Returns the costs of the stage that takes longest for a sequence of `length` tokens: its time is a sum over tokens and squares.
SequenceCosts sequence_costs(const StageCostsOf& costs, double length);

// Where a sequence of `length` tokens is cut into `pieces` of equal time: pieces - 1 positions, not rounded.
std::vector<double> cut_bounds(double length, int pieces, const SequenceCosts& costs);

// The work of one pass through the pipeline: at most one piece of a cut sequence, and whole short sequences.
struct Chunk {
  std::int64_t before = 0, tokens = 0;  // the piece, and the tokens of its sequence before it; tokens 0: none
  std::vector<std::int64_t> shorts;     // lengths, descending

  std::int64_t total() const;
  double time(const SequenceCosts& costs) const;
};

struct SplitSequences {
  std::vector<double> bounds;
  std::vector<std::vector<Chunk>> sequences;  // the chunks of each cut sequence, and each pack of short ones alone; most chunks first
};

// The longest sequence is cut into `pieces`, and every sequence that is longer than the first bound at the same bounds, rounded to whole
// tokens. Only the last chunk of a sequence takes short ones too. Short ones, longest first, go to the chunk with the least time per token
// among those that stay within the capacity and within the time of the longest sequence's pieces; where none has room for the tokens, to a
// new one; where only time is short, that limit grows by as little as one of them needs. Throws Error for a piece or sequence above the
// capacity (tokens).
SplitSequences split_sequences(std::vector<std::int64_t> lengths, int pieces, const SequenceCosts& costs, double capacity = kInfinity);
// The same at given bounds (none: nothing is cut), with the time that the packing begins with.
SplitSequences split_at(std::vector<double> bounds, double time_limit, std::vector<std::int64_t> lengths, const SequenceCosts& costs,
                        double capacity = kInfinity);

}  // namespace penstock
