// SPDX-License-Identifier: Apache-2.0
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
//
// The vocabulary in --head-shards parts, as the last actor would have it beside its layers: part k is stage p+k, on actor k modulo p, and
// what joins their logsumexps to the loss is the last stage, on the last actor. A slice's backward waits for all parts, there and back;
// meanwhile actors go on, two slices further ahead than without parts, and a part runs as soon as it can. Peak (1+(2(p-1-i)+2)/n)A.
//
//   penstock schedule slimpipe --actors 2 --microbatches 1 --slices 2 --head-shards 2 --show
//   actor 0 | 0.0F0 0.1F0 2.0F0 .     2.1F0 .     .     .     .     2.1B0------ .     .     2.0B0------ .     .     0.1B0------ 0.0B0------
//   actor 1 | .     1.0F0 3.0F0 1.1F0 3.1F0 4.0F0 4.1F0 4.1B0------ 3.1B0------ 4.0B0------ 3.0B0------ 1.1B0------ 1.0B0------
//   time 21, bubble 28.6 %, live 4 6
#include "schedule/generators.h"
#include "schedule/in_order.h"

namespace penstock {
namespace {

// The stages' actors and times, by which the head's actions find their places between the trunk's: a part takes a quarter of an actor's
// layers, a transfer as long as the trunk's rows hide, one and a half of their forwards. Where transfers take no time that costs nothing.
EngineWork work_of(const Schedule& trunk, const ScheduleOptions& options, TableCosts& costs) {
  const int p = options.actors, shards = options.head_shards, stages = trunk.whole_stages();
  EngineWork work{.shape = sliced(chain_with_head(stages, shards), trunk.slices, trunk.blocks),
                  .actors = {actor_of_stage(trunk)},
                  .actor_count = p,
                  .microbatches = options.microbatches,
                  .costs = &costs};
  for (std::int32_t number = 0; number < std::ssize(work.shape.predecessors); ++number) {
    const int stage = part_of(number, trunk.slices, trunk.blocks).stage;
    const bool is_join = stage == stages + shards;
    const double time = stage < stages ? 4.0 * p / stages : is_join ? 0.125 : 1;
    costs.stages.push_back(uniform_costs(1, {}, time).stages[0]);
    if (stage >= stages) work.actors[0].push_back(is_join ? p - 1 : (stage - stages) % p);
  }
  work.arrival = [](std::int32_t, std::int32_t, double ready, double) { return ready + 6; };
  return work;
}

}  // namespace

int slices_in_head(const ScheduleOptions& options) {
  return options.head_shards > 1 ? 2 : 0;
}

Schedule with_head(Schedule trunk, const ScheduleOptions& options) {
  if (options.head_shards == 1) return trunk;
  TableCosts costs;
  const EngineWork work = work_of(trunk, options, costs);
  Schedule schedule = in_rows(trunk, work, [](const Action&) { return true; });
  schedule.slices = trunk.slices;
  schedule.blocks = trunk.blocks;
  return schedule;
}

Schedule slimpipe(const ScheduleOptions& options) {
  const auto ahead = [&](int actor) { return options.slices + 2 * (options.actors - 1 - actor) + slices_in_head(options); };
  return with_head(alternating(options, ahead), options);
}

Schedule seq1f1b(const ScheduleOptions& options) {
  return alternating(options, [&](int actor) { return options.slices + options.actors - 1 - actor; });
}

}  // namespace penstock
