// SlimPipe (2504.14519): 1F1B over n equal slices of each sequence. Actor i runs n+2(p-1-i) slices forward, then a slice back and a slice
// forward in turn; a micro-batch goes back from its last slice to its first, as each needs the gradients of its keys and values from those
// behind it.
//
// Bubble (p-1)(F+B)/n where slices cost alike; peak (1+2(p-1-i)/n)A on actor i, mA at most; one copy of the parameters. It hides a latency
// of up to (F+B)/2n in the steady state. Causal attention makes later slices dearer, which the paper evens out by moving blocks of
// attention between actors; without that the actors wait for each other.
//
// Seq1F1B (2406.03488) is the same with n+(p-1-i) slices: peak (1+(p-1-i)/n)A, no latency hidden. It is a schedule of its own (seq1f1b), as
// no other option says so: --in-flight counts whole micro-batches, and is one limit for all actors.
//
//   penstock schedule slimpipe --actors 2 --microbatches 3 --slices 2 --show
//   actor 0 | 0.0F0 0.1F0 0.0F1 0.1F1 .     0.1B0------ 0.0F2 0.0B0------ 0.1F2 0.1B1------ .     0.0B1------ .     0.1B2------ 0.0B2------
//   actor 1 | .     1.0F0 1.1F0 1.1B0------ 1.0F1 1.0B0------ 1.1F1 1.1B1------ 1.0F2 1.0B1------ 1.1F2 1.1B2------ 1.0B2------
//   time 21, bubble 14.3 %, live 4 2
//
//   penstock schedule seq1f1b --actors 2 --microbatches 3 --slices 2 --show
//   actor 0 | 0.0F0 0.1F0 0.0F1 .     .     0.1B0------ 0.1F1 0.0B0------ 0.0F2 0.1B1------ 0.1F2 0.0B1------ .     0.1B2------ 0.0B2------
//   actor 1 | .     1.0F0 1.1F0 1.1B0------ 1.0F1 1.0B0------ 1.1F1 1.1B1------ 1.0F2 1.0B1------ 1.1F2 1.1B2------ 1.0B2------
//   time 21, bubble 14.3 %, live 3 2
#include "schedule/generators.h"

namespace penstock {

Schedule slimpipe(const ScheduleOptions& options) {
  return alternating(options, [&](int actor) { return options.slices + 2 * (options.actors - 1 - actor); });
}

Schedule seq1f1b(const ScheduleOptions& options) {
  return alternating(options, [&](int actor) { return options.slices + options.actors - 1 - actor; });
}

}  // namespace penstock
