// SPDX-License-Identifier: Apache-2.0
// SlimPipe's exchange of attention blocks: published values, even loads, and no more moves than any even loads need.
#include "schedule/exchange_blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/numbers.h"

namespace penstock {
namespace {

void expect_exchange(int actors, int slices, std::int64_t moved, std::int64_t blocks, double before, double after) {
  const BlockExchange exchange = exchange_blocks(actors, slices);
  EXPECT_EQ(exchange.moved, moved);
  EXPECT_EQ(exchange.blocks, blocks);
  EXPECT_DOUBLE_EQ(exchange.before, before);
  EXPECT_DOUBLE_EQ(exchange.after, after);
}

TEST(Exchange, PublishedValues) {
  expect_exchange(4, 8, 18, 112, 2.5, 1.25);
  expect_exchange(2, 8, 3, 56, 1.875, 1.5);
  expect_exchange(4, 4, 4, 24, 1.75, 1.25);
}

TEST(Exchange, NothingMovesBetweenEqualLoads) {
  expect_exchange(1, 8, 0, 28, 1, 1);
  expect_exchange(8, 1, 0, 0, 1, 1);
}

// Actor 0 has begun the next sequence, and takes the first blocks of all others.
TEST(Exchange, MovesOfARound) {
  const ExchangeRound round = exchange_blocks(4, 8).rounds[0];
  EXPECT_EQ(round.slices, (std::vector<int>{0, 7, 6, 5}));
  ASSERT_EQ(round.moves.size(), 3U);
  const std::vector<std::vector<int>> expected = {{1, 0, 0, 2}, {2, 0, 0, 1}, {3, 0, 0, 1}};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const BlockMove& move = round.moves[i];
    EXPECT_EQ((std::vector<int>{move.from, move.to, move.first, move.count}), expected[i]);
  }
}

// Moves until loads are even: any choice of the actors that keep one more than the others.
int least_moves(const std::vector<int>& blocks) {
  const int actors = static_cast<int>(blocks.size()), all = std::accumulate(blocks.begin(), blocks.end(), 0);
  int least = all;
  for (unsigned choice = 0; choice < 1U << actors; ++choice) {
    if (__builtin_popcount(choice) != all % actors) continue;
    int moves = 0;
    for (int i = 0; i < actors; ++i) moves += std::max(0, blocks[at(i)] - all / actors - static_cast<int>(choice >> i & 1));
    least = std::min(least, moves);
  }
  return least;
}

void expect_even(const ExchangeRound& round, int slices, int t) {
  std::vector<int> blocks = round.slices, given(blocks.size(), 0);
  int moved = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ((blocks[i] + static_cast<int>(i) - t) % slices, 0);
  for (const BlockMove& move : round.moves) {
    EXPECT_NE(move.from, move.to);
    EXPECT_GT(move.count, 0);
    EXPECT_EQ(move.first, given[at(move.from)]);  // no block moves twice
    given[at(move.from)] += move.count;
    blocks[at(move.from)] -= move.count;
    blocks[at(move.to)] += move.count;
    moved += move.count;
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) EXPECT_LE(given[i], round.slices[i]);
  const auto [low, high] = std::minmax_element(blocks.begin(), blocks.end());
  EXPECT_LE(*high - *low, 1);
  EXPECT_EQ(moved, least_moves(round.slices));
}

TEST(Exchange, EvenLoadsByTheFewestMoves) {
  for (int actors = 1; actors <= 9; ++actors)
    for (int slices = 1; slices <= 20; ++slices) {
      const BlockExchange exchange = exchange_blocks(actors, slices);
      ASSERT_EQ(exchange.rounds.size(), at(slices));
      for (int t = 0; t < slices; ++t) expect_even(exchange.rounds[at(t)], slices, t);
      EXPECT_LE(exchange.after, exchange.before);
    }
}

}  // namespace
}  // namespace penstock
