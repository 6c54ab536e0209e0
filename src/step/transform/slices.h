// SPDX-License-Identifier: Apache-2.0
// Sequences of which a stage works on one slice after the other (TeraPipe, 2102.07988). In a causal model a token needs none behind it, so
// while one stage works on a slice, the next one works on the slice before: a slice is to a pipeline what a micro-batch is.
//
// A slice is a stage of the unrolled step: stage "s" becomes "s.0", "s.1", ..., each a step's part for one range of the sequence, in the
// layouts that members of an axis over which `sequence` is split would have (transform/layouts.h). So nothing behind this pass knows of
// slices: what a later slice reads of an earlier one is a value between two stages, and each parameter's gradient is a sum of the slices'.
//
// Causal attention of a slice is causal over its own keys, and whole over those of each slice before, joined by their logsumexps. Its
// backward goes part by part with the joined logsumexp; gradients of keys and values are summed on the way from the last slice to the
// first. Other attention reads all keys, which are whole: those of another sequence, such as an encoder's. Their gradients are summed
// likewise.
//
// A value that is whole is computed once, in the first slice: an encoder, whose tokens need those behind them (constrain() says so), and
// what a decoder makes of its results. Where all of a stage is whole, its other slices have no ops, so the loop lists the slices
// ("stages").
//
// A part over the keys of one earlier slice, a block, may be apart: a stage of its own, "s.3.0" for block 0 of slice 3, which reads
// queries, keys and values and gives outputs and logsumexp, so that it may run where there is time for it (SlimPipe, 2504.14519). These are
// joined with the slice's own where the stage behind reads them, so that both can go on at once. Backward it reads what F did and the
// joined results; its term of the queries' gradient is added in the stage before, those of keys and values in the next slice that goes
// back.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"

namespace penstock {

// The attention of a slice's queries with the keys and values of the slice `block`, which is before it, in the stage of that name.
struct AttentionBlock {
  std::string stage;
  std::int64_t slice = 0, block = 0;

  auto operator<=>(const AttentionBlock&) const = default;
};

// The step with the sequence of each micro-batch cut into so many slices, equal but for one token, or of lengths in these proportions (one:
// its stages only get the names of slices). Ops
// of whole tensors, which depend on no slice or on all, are in the first slice that can have them. `step`: one loop, whose ops have their
// stages (stage/stages.h). Tokens lie along the dims that the model calls "sequence" and, where it sends them to experts, "routed". Throws
// Error for a model that does not name its dim "sequence", a sequence of fewer tokens than slices, and an op by which a token would need
// one behind it. The blocks of `apart` are stages of their own; throws Error where one's stage has no causal
// attention, or has more than that. `stages`: all of the step's, in order, whose slices the loop
// then lists; none: each slice of each stage has ops.
Graph unroll_slices(const Graph& step, std::int64_t slices, const std::vector<std::int64_t>& lengths = {},
                    const std::vector<AttentionBlock>& apart = {}, const std::vector<std::string>& stages = {});

// The row of an attention, or of its backward, whose operands lie `from`, in which slices have the queries of their tokens, and the keys of
// these too, where it is causal, or else all keys; none: it has no such row.
std::optional<LayoutRow> row_in_slices(const LayoutSite& site, std::span<const Layout> from);

}  // namespace penstock
