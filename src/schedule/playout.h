// Orders that are found by playing them: every actor runs, at each moment, what can run and comes first by a few rules.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/schedule.h"

namespace penstock {

// Stages form a chain; F, I and W each take one unit of time.
struct Playout {
  // Of each actor: its forwards and its input gradients, each in the order in which they will run. Weight gradients follow in the order of
  // the input gradients.
  std::vector<std::vector<Action>> forwards{}, inputs{};
  std::vector<double> transfers{};  // units of time of a transfer between actors a and a+1, in both directions; of other pairs 0
  // An actor's k-th input gradient waits for so many of its forwards.
  std::vector<std::int32_t> forwards_before_input{};
  std::int32_t live = 0;   // so many forwards at most wait for their W on an actor
  bool alternate = false;  // after an input gradient a forward comes first; else always the input gradient
};

// What can run first runs; of several, input gradients, then forwards (or in turn, see `alternate`), then weight gradients; input
// gradients before weight gradients once all forwards have run. In time of actions * log(actors).
Schedule play(const Playout& playout);

}  // namespace penstock
