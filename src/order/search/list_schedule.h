// SPDX-License-Identifier: Apache-2.0
// List schedules: each time, the actor that can start something first starts what a policy prefers.
#pragma once

#include <string>
#include <vector>

#include "base/numbers.h"
#include "search/bound.h"
#include "search/legs.h"

namespace penstock {

struct Policy {
  enum class Prefer : std::uint8_t { backward, forward, in_turn, critical };  // what can start at the same time
  Prefer prefer = Prefer::backward;
  // Forwards ahead of backwards: as many as keep an actor busy for so many times as long as a micro-batch takes from it to the end and
  // back. 1 is 1F1B's warm-up, 2 and more hide latency or wait for W; the memory limit holds anyway.
  double depth = kInfinity;
  double fill = 1;         // W runs where at least this part of it fits before anything else can start; 0: wherever there is time
  int backlog = 1 << 30;   // W that may wait; beyond that they come before all else
  bool deep_first = true;  // of two stages on one actor, the one nearer to the end of the micro-batch
  bool make_room = false;  // W before I where memory holds back a forward
};
std::string text(const Policy& policy);

// Empty where the policy ran into a dead end. Never more memory than the limit.
Rows list_schedule(const Legs& legs, const HeadsAndTails& ends, const Policy& policy);
std::vector<Policy> policies(const Legs& legs);

// Actor r of a chain with one stage per actor runs e(r) forwards, then of each micro-batch j its I, W of j - d(r) and the next forward
// (the zero-bubble paper's form, 2401.10241): e = 1 + warm_up * (p-1-r), d = delay * r, as memory allows. Empty for other placements.
Rows zero_bubble_rows(const Legs& legs, double warm_up, double delay);

}  // namespace penstock
