// SPDX-License-Identifier: Apache-2.0
// A lower bound on the time that a placement's work takes.
#pragma once

#include <vector>

#include "search/legs.h"

namespace penstock {

// For F, I and W (in this order) of a leg's k-th micro-batch: it cannot start before its head, and after its end at least its tail passes
// until everything has. B counts as an I and a W, each at most as long as either way of doing it.
class HeadsAndTails {
 public:
  explicit HeadsAndTails(const Legs& legs);

  double head(std::int32_t leg, int part, std::int32_t k) const { return head_[index(leg, part, k)]; }
  double tail(std::int32_t leg, int part, std::int32_t k) const { return tail_[index(leg, part, k)]; }
  double time(std::int32_t leg, int part) const { return times_[3 * leg + part]; }
  // Micro-batches of this leg that its actor can hold at once: the k-th W is before the (k + window)-th F.
  std::int32_t window(std::int32_t leg) const { return windows_[static_cast<std::size_t>(leg)]; }

  // Holds for every order of the rows.
  double bound() const { return bound_; }

  // The next piece of work of an actor, if that is decided, and when at the earliest it can do anything else.
  struct Choice {
    std::int32_t leg = -1;
    int part = 0;
    double after = 0;
  };
  // The heads of what has not run when `run` has gone as far as it has; `heads` by index(). One choice for each actor.
  void heads_after(const PartialRun& run, const std::vector<Choice>& choices, std::vector<double>& heads) const;
  std::size_t index(std::int32_t leg, int part, std::int32_t k) const {
    return static_cast<std::size_t>((leg * 3 + part) * legs_.microbatches + k);
  }

 private:
  void find_heads();
  void find_tails();
  void find_bound();
  void strengthen_head(std::int32_t leg, int part, std::int32_t k);
  void strengthen_tail(std::int32_t leg, int part, std::int32_t k);

  const Legs& legs_;
  std::vector<double> head_, tail_, times_;
  std::vector<std::int32_t> windows_;
  std::vector<std::vector<bool>> feeds_, returns_;  // (a, b): a's F comes before b's; b's backward comes before a's
  bool is_small_ = true;  // else an actor's work as a whole is left out of heads and tails: it would take its square
  double bound_ = 0;
};

// A machine's work with heads and tails, where work may be interrupted: no order can be faster (Jackson's preemptive schedule; Carlier
// 1982).
struct MachineTask {
  double head, time, tail;
};
double one_machine_bound(std::vector<MachineTask>& tasks);  // reorders them

}  // namespace penstock
