// SPDX-License-Identifier: Apache-2.0
#include "schedule/exchange_blocks.h"

#include <algorithm>
#include <numeric>

#include "base/numbers.h"

namespace penstock {
namespace {

double largest_over_mean(const std::vector<int>& blocks) {
  constexpr double kOwn = 0.5;  // the causal part, in blocks
  const double mean = std::accumulate(blocks.begin(), blocks.end(), 0.0) / static_cast<double>(blocks.size());
  return (*std::max_element(blocks.begin(), blocks.end()) + kOwn) / (mean + kOwn);
}

// The blocks that each actor shall have: nearly the same, and those with the most what is over. `order` has those with the most first.
std::vector<int> even_loads(const std::vector<int>& blocks, const std::vector<int>& order) {
  const int all = std::accumulate(blocks.begin(), blocks.end(), 0), actors = static_cast<int>(blocks.size());
  std::vector<int> wanted(blocks.size());
  for (int k = 0; k < actors; ++k) wanted[at(order[at(k)])] = all / actors + (k < all % actors ? 1 : 0);
  return wanted;
}

// Actors that have most give to actors that have least; `blocks` becomes what each has then.
std::vector<BlockMove> even_out(std::vector<int>& blocks) {
  std::vector<int> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return blocks[at(a)] > blocks[at(b)]; });
  const std::vector<int> wanted = even_loads(blocks, order);
  std::vector<BlockMove> moves;
  std::size_t last = order.size() - 1;  // of the order: who takes
  for (const int from : order) {
    for (int first = 0; blocks[at(from)] > wanted[at(from)];) {
      const int to = order[last], room = wanted[at(to)] - blocks[at(to)];
      const int count = std::min(blocks[at(from)] - wanted[at(from)], room);
      if (count > 0) moves.push_back({from, to, first, count});
      blocks[at(from)] -= count;
      blocks[at(to)] += count;
      first += count;
      if (count == room) --last;
    }
  }
  return moves;
}

}  // namespace

BlockExchange exchange_blocks(int actors, int slices) {
  BlockExchange out;
  for (int t = 0; t < slices; ++t) {
    ExchangeRound round;
    for (int i = 0; i < actors; ++i) round.slices.push_back(((t - i) % slices + slices) % slices);
    std::vector<int> blocks = round.slices;
    out.before = std::max(out.before, largest_over_mean(blocks));
    round.moves = even_out(blocks);
    out.after = std::max(out.after, largest_over_mean(blocks));
    for (const BlockMove& move : round.moves) out.moved += move.count;
    out.blocks = std::accumulate(blocks.begin(), blocks.end(), out.blocks);
    out.rounds.push_back(std::move(round));
  }
  return out;
}

}  // namespace penstock
