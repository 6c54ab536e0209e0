// The order in which interleaved schedules run an actor's chunks: micro-batches in groups, each through one chunk after the other.
#pragma once

#include "penstock/schedule.h"

namespace penstock {

class Interleave {
 public:
  // A group has options.group micro-batches, or as many as there are actors.
  explicit Interleave(const ScheduleOptions& options);

  // Positions of an actor's order, some of which hold no micro-batch.
  int pieces() const;
  // The number of those that come before the last chunk's first.
  int first_round() const { return (chunks_ - 1) * slots_; }
  // Returns the action of `kind` at position `piece`; backwards go through the chunks in reverse; micro-batch -1: none.
  Action action(Kind kind, int actor, int piece) const;

 private:
  int actors_, chunks_, microbatches_, group_, slots_;
};

}  // namespace penstock
