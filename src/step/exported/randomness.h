// SPDX-License-Identifier: Apache-2.0
// Random ops of a joint graph, drawn by counters.
#pragma once

#include <cstdint>

#include "penstock/graph.h"

namespace penstock {

// The graph with dropout (ops.h) in place of the ops that draw random numbers: the same in the backward as in the forward, and under every
// plan. `samples`: how many a micro-batch has. Behind the inputs come "rows" i64[samples], the samples' numbers in the batch, "seed" and
// "step", i64 scalars; random op i of the graph draws under random_key(seed, step, i). A graph without random ops is returned as it is.
//
// A tensor whose first size is a multiple of `samples` has the samples along that dim, and each sample's part is drawn by its row; any
// other tensor is drawn as a whole, by the first row of the micro-batch.
//
// Taken are native_dropout and its backward, bernoulli with one probability, and rand that is compared with a number, or to which a number
// is added before it is rounded down. Works on renamed graphs (rename.h). Throws Error, naming op and module, for random ops of other
// kinds, and where an input has one of the new inputs' names.
Graph draw_by_counters(const Graph& joint, std::int64_t samples);

// The graph of a module that draws nothing: dropout drops nothing, and what is 1 or 0 at random is as much as it is on average, so that a
// branch dropped with probability p is there with its usual weight. Throws Error as draw_by_counters does, and for a random choice of true
// or false, which has no average.
Graph without_draws(const Graph& graph);

}  // namespace penstock
