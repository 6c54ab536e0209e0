// SPDX-License-Identifier: Apache-2.0
// Evens out attention among actors that are at different slices, by moving blocks of it: SlimPipe's exchange (2504.14519).
#pragma once

#include <cstdint>
#include <vector>

namespace penstock {

// Blocks first .. first + count - 1 of the attention of `from`: its queries, and the keys and values of so many of its slice's earlier
// ones, go to `to`; the outputs and their log-sum-exps come back.
struct BlockMove {
  int from = 0, to = 0;
  int first = 0, count = 0;
};

// The attention of all actors at once. An actor at slice s has s blocks that can move, its queries with the keys of slices 0 .. s - 1, and
// half a block that cannot: the causal attention of the slice to itself.
struct ExchangeRound {
  std::vector<int> slices;  // by actor
  std::vector<BlockMove> moves;
};

struct BlockExchange {
  std::vector<ExchangeRound> rounds;
  std::int64_t moved = 0, blocks = 0;  // of all rounds; `blocks` are those that can move
  double before = 1, after = 1;        // the largest load over the mean in the worst round; loads are blocks and the half one
};

// In the steady state of a forward over equal slices, actor i is at slice (t - i) mod slices in round t; after `slices` rounds all repeats.
// The backward, which begins at the last slice and the last actor, has the same rounds in reverse. In each round as few whole blocks move
// as make the loads of any two actors differ by at most 1: the actors with the most keep what is over. An actor's first blocks move, as
// their keys are there longest and can be sent before the round. Takes at least one actor and one slice; O(slices actors log actors).
BlockExchange exchange_blocks(int actors, int slices);

}  // namespace penstock
