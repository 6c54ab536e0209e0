// Sequences of which a stage works on one slice after the other (TeraPipe, 2102.07988). In a causal model a token needs none behind it, so
// while one stage works on a slice, the next one works on the slice before: a slice is to a pipeline what a micro-batch is.
//
// A slice is a stage of the unrolled step: stage "s" becomes "s.0", "s.1", ..., each a step's part for one range of the sequence, in the
// layouts that members of an axis over which `sequence` is split would have (transform/layouts.h). So nothing behind this pass knows of
// slices: what a later slice reads of an earlier one is a value between two stages, and each parameter's gradient is a sum of the slices'.
//
// Attention of a slice is causal over its own keys, and whole over those of each slice before, joined by their logsumexps. Its backward
// goes part by part with the joined logsumexp; gradients of keys and values are summed on the way from the last slice to the first.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"

namespace penstock {

// The step with the sequence of each micro-batch cut into so many slices, equal but for one token, or of lengths in these proportions. Ops
// of whole tensors, which depend on no slice or on all, are in the first slice that can have them. `step`: one loop, whose ops have their
// stages (stage/stages.h). Throws Error for a model that does not name its dim "sequence", a sequence of fewer tokens than slices, and an
// op by which a token would need one behind it.
Graph unroll_slices(const Graph& step, std::int64_t slices, const std::vector<std::int64_t>& lengths = {});

// The row of a causal attention, or of its backward, in which slices have the queries and keys of their tokens; none: it has no such row.
std::optional<LayoutRow> row_in_slices(const LayoutSite& site, const Layout& queries);

}  // namespace penstock
