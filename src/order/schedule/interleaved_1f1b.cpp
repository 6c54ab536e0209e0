// SPDX-License-Identifier: Apache-2.0
// Interleaved 1F1B (Narayanan et al., 2104.04473): chunk c of actor r is stage c*p+r. Micro-batches go in bunches of G (--group, p unless
// said) through chunk 0, then 1, ...; an actor runs 2(p-1-r)+(v-1)G chunk-forwards, then a forward and a backward in turn.
//
// Bubble (p-1)(F+B)/v where G >= p divides m; peak (2(p-1)+(v-1)G+1)A/v on actor 0 (p(1+(p-1)/(pv))A for G = p), at most mA; one copy of
// the parameters. Transfers are crossed v times as often. A larger G leaves more time for them and needs less gathering of parameters.
//
// Where there are several bunches, one of fewer than p and a last one of fewer than G are laid out as if they were full, without the
// micro-batches that do not exist: nothing passes between micro-batches, so leaving out whole ones keeps a table valid.
//
//   penstock schedule interleaved-1f1b --actors 2 --microbatches 4 --chunks 2 --show
//   actor 0 | 0F0 0F1 2F0 2F1 0F2 .   2B0---- 0F3 2B1---- 2F2 0B0---- 2F3 0B1---- .   2B2---- .   2B3---- 0B2---- 0B3----
//   actor 1 | .   1F0 1F1 3F0 3B0---- 3F1 3B1---- 1F2 1B0---- 1F3 1B1---- 3F2 3B2---- 3F3 3B3---- 1B2---- 1B3----
//   time 27, bubble 11.1 %, live 5 3
#include <algorithm>

#include "schedule/generators.h"

namespace penstock {
namespace {

// The order in which an actor runs its chunks: micro-batches in bunches, each through one chunk after the other.
class Interleave {
 public:
  // A bunch has options.group micro-batches, or as many as there are actors.
  explicit Interleave(const ScheduleOptions& options)
      : actors_(options.actors),
        chunks_(options.chunks),
        microbatches_(options.microbatches),
        bunch_(std::min(options.group > 0 ? options.group : options.actors, options.microbatches)),
        slots_(bunch_ == microbatches_ ? bunch_ : std::max(bunch_, actors_)) {}

  // Positions of an actor's order, some of which hold no micro-batch.
  int pieces() const { return (microbatches_ + bunch_ - 1) / bunch_ * slots_ * chunks_; }
  // The number of those that come before the last chunk's first.
  int first_round() const { return (chunks_ - 1) * slots_; }
  // Adds the action of `kind` at position `piece`, if any; backwards go through the chunks in reverse.
  void push(Kind kind, int actor, int piece, std::vector<Action>& row) const {
    const int round = slots_ * chunks_, within = piece % round, slot = within % slots_;
    const int chunk = kind == Kind::F ? within / slots_ : chunks_ - 1 - within / slots_;
    const int microbatch = piece / round * bunch_ + slot;
    if (slot < bunch_ && microbatch < microbatches_) row.push_back({chunk * actors_ + actor, kind, microbatch});
  }

 private:
  int actors_, chunks_, microbatches_, bunch_, slots_;
};

}  // namespace

Schedule interleaved(const ScheduleOptions& options, bool split) {
  const Interleave order(options);
  Schedule schedule;
  for (int r = 0; r < options.actors; ++r) {
    auto& row = schedule.actors.emplace_back();
    const auto push = [&](Kind kind, int piece) { order.push(kind, r, piece, row); };
    const int ahead = (split ? 1 : 2) * (options.actors - 1 - r) + order.first_round() + 1;
    split ? take_turns(order.pieces(), ahead, r, push) : take_turns(order.pieces(), ahead, push);
  }
  return schedule;
}

Schedule interleaved_one_forward_one_backward(const ScheduleOptions& options) {
  return interleaved(options, false);
}

}  // namespace penstock
