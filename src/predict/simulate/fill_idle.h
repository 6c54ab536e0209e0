// SPDX-License-Identifier: Apache-2.0
// Frozen layers in the idle time of a step: DiffusionPipe (Tian et al., 2405.01248, section 5). What a step reads of layers that are not
// trained, as encoders, needs no gradient and none of the step's parameters, so the step before it can compute it where its devices wait.
#pragma once

#include <cstdint>
#include <vector>

#include "penstock/timeline.h"

namespace penstock {

// Times in the timeline's unit, above 0: of each layer, forward, for the whole batch on one device. A layer needs the one before it.
using FrozenChain = std::vector<double>;

// A time in which these devices, and no others, compute nothing.
struct IdleInterval {
  double begin = 0, end = 0;
  std::vector<std::int32_t> devices;  // ascending

  double idle() const { return (end - begin) * static_cast<double>(devices.size()); }  // of all of them together
};
// All of a step's, from 0 to its makespan, in time. Throws Error where intervals times devices are more than 2^27.
std::vector<IdleInterval> idle_intervals(const Timeline& step);

// A layer, or a part of its batch, on several devices at once, each with an equal share of the samples: q devices take a q-th of its time.
struct FrozenPiece {
  std::int32_t chain = 0, layer = 0;
  double share = 1;  // of the batch
  double begin = 0, end = 0;
  std::vector<std::int32_t> devices;
};
struct FrozenFill {
  int parts = 8;                    // of a batch: one is the quantum of partial batches
  std::vector<FrozenPiece> inside;  // in idle intervals, in time
  std::vector<FrozenPiece> behind;  // what is left, on all devices behind the step, in time
  double idle = 0;                  // of all devices in the step
  double work = 0, placed = 0;      // of the frozen layers on one device, and how much of it is inside
  double makespan = 0;              // of the step and what is behind it: its own + (work - placed) / devices

  double placed_share() const { return work > 0 ? placed / work : 1; }
  double filled_share() const { return idle > 0 ? placed / idle : 0; }
};

struct FillOptions {
  int parts = 8;   // from 1 to 4096
  int kept = 128;  // ways to fill the intervals so far that are followed, from 1
};
// Fills idle intervals in time order. An interval takes layers of ready chains one after the other, each on all its devices, and then one
// partial batch, a whole number of parts of a chain's next layer. With `kept` 1 each interval takes what fills it most, as DiffusionPipe
// does; what does may leave worse for the next ones, so else as many ways are followed side by side, those that have filled most so far,
// and the best at the end is taken. It never places less than 1 does. Fewer ways are followed of very many intervals. Throws Error for no
// chain, an empty one, times that are not finite or not above 0, and options outside their ranges.
FrozenFill fill_idle(const Timeline& step, const std::vector<FrozenChain>& chains, const FillOptions& options = {});

// Throws Error unless `fill` computes every layer once, each behind the layer before it, in parts of its quantum, where its devices do
// nothing else and for as long as it takes.
void check_fill(const Timeline& step, const std::vector<FrozenChain>& chains, const FrozenFill& fill);

}  // namespace penstock
