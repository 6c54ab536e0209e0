// SPDX-License-Identifier: Apache-2.0
// Random valid tables over random stage DAGs, and random ways to break one.
#pragma once

#include <random>
#include <string>

#include "penstock/schedule.h"

namespace penstock::test {

using Random = std::mt19937_64;

// A number drawn uniformly from [low, high].
int draw(Random& random, int low, int high);
bool coin(Random& random, double probability);

struct RandomShapeOptions {
  int most_stages = 6;
  double edge = 0.4;       // probability of an edge between two stages, besides those that keep the graph connected
  double no_backward = 0;  // probability that a stage has no backward, where no stage with backward feeds it
  double no_parameters = 0;
};
// A random connected shape: every stage but the first has a predecessor.
StageShape random_shape(Random& random, const RandomShapeOptions& options = {});

struct RandomScheduleOptions {
  double split = 0.5;         // probability that a stage's backward is I and W
  bool mixed_split = false;   // split is drawn per micro-batch instead
  double foreign_weight = 0;  // probability that a W runs on another actor than its I
  double foreign_input = 0;   // that an I does than its F
  double replica = 0;         // probability that a micro-batch of a stage runs on another actor than the stage's own
};
// A valid table for the shape: each time a random ready piece of work goes to the end of its actor's row. Actors may be idle.
Schedule random_schedule(Random& random, const StageShape& shape, int actors, int microbatches, const RandomScheduleOptions& options = {});

// A valid table for `steps` training steps of so many micro-batches (Schedule::steps): a U stands somewhere behind each step's gradients,
// and many actions name a version, drawn from those that are made. `foreign`: that of an I and of a W in RandomScheduleOptions.
Schedule random_window(Random& random, const StageShape& shape, int actors, int microbatches, int steps, double foreign = 0);

// The table with an R for a share of the forwards that have a backward: anywhere between the two or, if `late`, right before the backward.
Schedule with_recomputation(Random& random, Schedule schedule, double share, bool late = false);
// The same table, still valid, with actions inserted at random: R, or OFFLOAD and RELOAD, for some micro-batches; UNSHARD, RESHARD and
// REDUCE_GRAD for some stages on some actors; U for other stages and for some of these.
Schedule with_extras(Random& random, Schedule schedule, const StageShape& shape);

// The table with OFFLOAD and RELOAD, with this probability and at random places, between F and the first B or I of each stage and
// micro-batch without R.
Schedule with_host_copies(Random& random, Schedule schedule, double probability = 0.5);

// The table of sends (with_sends) with some of them moved along their rows, as far as it can still run.
Schedule with_moved_sends(Random& random, Schedule schedule, const StageShape& shape);
// A chain's table of one step with sends somewhere behind what they send, and receives as with_receives puts them; it stays as it is where
// its actions have no names for all transfers.
Schedule with_transfers(Random& random, const Schedule& schedule, const StageShape& shape);

// The table with some neighbours in a row as fused pairs; only actions that compute.
Schedule with_pairs(Random& random, Schedule schedule, double probability = 0.4);
// The same table, still valid, with some neighbours of one kind and stage and of consecutive micro-batches as one action.
Schedule with_counts(Random& random, Schedule schedule, const StageShape& shape, double probability = 0.5);

// A table with one defect, as CSV, and words that the message must contain.
struct BrokenTable {
  std::string kind;  // "missing", "doubled", "circular", ...
  std::string csv;
  std::string expected;     // part of the message
  bool unreadable = false;  // whether parse_schedule already throws
};
BrokenTable break_table(Random& random, const Schedule& schedule, const StageShape& shape);
// The same of a table of random_window: a version that is not made, an update that is missing, doubled, out of order or ahead of a
// gradient.
BrokenTable break_window(Random& random, const Schedule& table);

}  // namespace penstock::test
