// HetPipe's virtual workers of unequal stages (Park et al., 2005.14038): the devices of an actor are one of each worker, and each worker
// has a table of its own, in which its stages lie on other actors than in the others'. Each table is lowered as if all devices ran it, as
// far as their runs; then each device takes its row of its worker's, and what workers sum of a stage, updates or gradients, they sum
// wherever each of them has it:
//
//   device          0         1         2         3
//   actor, worker   0 0       0 1       1 0       1 1
//   stages          0 1 2     0 1       3         2 3      stage 2 is summed by devices 0 and 3
#pragma once

#include <vector>

#include "lower/draft.h"

namespace penstock {

// Throws Error unless each of LowerOptions::others is a table for as many actors, steps and micro-batches as the first worker's, with waves
// as long, and each actor has a device for each; or where devices hold shares, or look rows up ahead, together. Nor do workers that update
// by themselves (LowerOptions::distance) look rows up ahead, or have slices along an axis that splits more than sequences.
void check_workers(const Schedule& schedule, const LowerOptions& options);

// The drafts of all workers' tables after the pass `devices` as one; the first's is `schedule`. Throws Error where workers do not sum the
// same of each stage where they have its forward: a W is elsewhere, or one's actor has added up terms of several stages that lie on several
// actors of another.
Draft join_workers(const Schedule& schedule, const LowerOptions& options, std::vector<Draft> drafts);

}  // namespace penstock
