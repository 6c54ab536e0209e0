// SPDX-License-Identifier: Apache-2.0
// SlimPipe with its exchange of attention (2504.14519): slimpipe over stages of which attention is one of its own, and of the attention of
// later slices whole blocks, queries with the keys and values of one earlier slice, go to actors that are at earlier slices, as many as
// make loads differ by at most one block (exchange_blocks.h). Of --chunks layers of an actor stage 2q is what stands before the attention
// of layer q and behind that of layer q-1, and stage 2q+1 that attention; so an actor has 2c+1 stages.
//
// All actors take turns together: in turn t of the forwards actor i is at slice t-i, counted over all micro-batches, and the backward of
// the same two slices falls in one turn as well, so that a block goes back where it went forward. A block stands in its taker's row behind
// the taker's own attention of that turn and layer, and what is before and behind it on the giver are in the same turn: in the order of
// turns, and in each of backward and forward, of layers and of (stage 2q, stage 2q+1, blocks), every action comes behind all that it needs,
// so no table waits in a circle. A taker that is not yet, or no longer, at work takes blocks as in all other turns.
//
// Bubble and peak as slimpipe where an actor's slices cost alike by this; what a taker keeps of a block's queries, keys and values comes on
// top. One copy of the parameters. An order that hides latency by itself: own attention runs while a block's operands come. Parts of the
// vocabulary (--head-shards) are placed as slimpipe's: two slices more are in flight, which shifts the turns of all backwards alike.
//
//   penstock schedule slimpipe-exchange --actors 2 --microbatches 1 --slices 3 --forward-only --show
//   actor 0 | 0.0F0   1.0F0   2.0F0   0.1F0   1.1F0   2.1F0   0.2F0   1.2F0   2.2F0   .       4.2.0F0
//   actor 1 | .       .       .       3.0F0   4.0F0   5.0F0   3.1F0   4.1F0   5.1F0   3.2F0   4.2F0   5.2F0
//   time 12, bubble 20.8 %, live 0 0
#include <algorithm>

#include "schedule/exchange_blocks.h"
#include "schedule/generators.h"

namespace penstock {
namespace {

class Exchange {
 public:
  explicit Exchange(const ScheduleOptions& options)
      : actors_(options.actors),
        slices_(options.slices),
        layers_(options.chunks),
        pieces_(options.microbatches * options.slices),
        in_head_(slices_in_head(options)),
        rounds_(exchange_blocks(options.actors, options.slices).rounds) {
    for (const ExchangeRound& round : rounds_)
      for (const BlockMove& move : round.moves)
        for (int layer = 0; layer < layers_; ++layer)
          for (int block = move.first; block < move.first + move.count; ++block)
            blocks_.push_back({attention(move.from, layer), round.slices[static_cast<std::size_t>(move.from)], block});
    std::sort(blocks_.begin(), blocks_.end());
  }

  const std::vector<StagePart>& blocks() const { return blocks_; }

  // Turns before an actor's first and behind its last slice are of blocks alone.
  std::vector<Action> row(int actor) const {
    const int ahead = slices_ + 2 * (actors_ - 1 - actor) + in_head_, first = 1 - actors_, end = pieces_ + actors_ - 1;
    std::vector<Action> row;
    take_turns(end - first, ahead,
               [&](Kind kind, int k) { kind == Kind::F ? forward(actor, first + k, row) : backward(actor, first + k, row); });
    return row;
  }

 private:
  int attention(int actor, int layer) const { return actor * (2 * layers_ + 1) + 2 * layer + 1; }
  bool is_turn(int turn) const { return turn >= 0 && turn < pieces_; }
  const ExchangeRound& round(int number) const { return rounds_[static_cast<std::size_t>((number % slices_ + slices_) % slices_)]; }

  // The slice at which a turn of the forwards or of the backwards is.
  int slice_at(Kind kind, int turn) const { return kind == Kind::F ? turn % slices_ : slices_ - 1 - turn % slices_; }

  void push(StagePart part, Kind kind, int turn, std::vector<Action>& row) const {
    if (!is_turn(turn)) return;
    part.slice = slice_at(kind, turn);
    row.push_back({number_of(part, slices_, blocks_), kind, turn / slices_});
  }

  // Attention in the actor's turn: its own, and then the blocks that it has of others. A giver's own turn is as many later forward, or
  // earlier going back, as it stands in front of the actor.
  void attend(int actor, int layer, Kind kind, int turn, std::vector<Action>& row) const {
    push({attention(actor, layer)}, kind, turn, row);
    const int number = kind == Kind::F ? turn + actor : slices_ - 1 - turn + actor;
    for (const BlockMove& move : round(number).moves) {
      const int given = kind == Kind::F ? turn + actor - move.from : turn + move.from - actor;
      for (int block = move.first; move.to == actor && block < move.first + move.count; ++block)
        push({.stage = attention(move.from, layer), .block = block}, kind, given, row);
    }
  }

  void forward(int actor, int turn, std::vector<Action>& row) const {
    push({attention(actor, 0) - 1}, Kind::F, turn, row);
    for (int layer = 0; layer < layers_; ++layer) {
      attend(actor, layer, Kind::F, turn, row);
      push({attention(actor, layer) + 1}, Kind::F, turn, row);
    }
  }

  void backward(int actor, int turn, std::vector<Action>& row) const {
    push({attention(actor, layers_ - 1) + 1}, Kind::B, turn, row);
    for (int layer = layers_ - 1; layer >= 0; --layer) {
      attend(actor, layer, Kind::B, turn, row);
      push({attention(actor, layer) - 1}, Kind::B, turn, row);
    }
  }

  int actors_, slices_, layers_;
  int pieces_;  // slices of all micro-batches
  int in_head_;
  std::vector<ExchangeRound> rounds_;
  std::vector<StagePart> blocks_;
};

}  // namespace

Schedule slimpipe_exchange(const ScheduleOptions& options) {
  const Exchange exchange(options);
  Schedule schedule;
  schedule.slices = options.slices;
  schedule.blocks = exchange.blocks();
  for (int actor = 0; actor < options.actors; ++actor) schedule.actors.push_back(exchange.row(actor));
  return with_head(std::move(schedule), options);
}

}  // namespace penstock
