// SPDX-License-Identifier: Apache-2.0
// Where the samples lie in what is no plain op on rows: fixed values beside them, indices, and micro-batches of one sample.
#pragma once

#include <optional>
#include <vector>

#include "penstock/graph.h"
#include "penstock/layout.h"

namespace penstock {

// Whether a value that is the same for all micro-batches is the same for all samples too, where they lie as `split`; none: it cannot be
// told.
std::optional<bool> is_uniform(const Graph& graph, const IdVector<ValueId, OpId>& producers, ValueId value, const Layout& split,
                               std::int64_t samples);

// The row of aten::index.Tensor in which samples stay apart, where its operands lie `at`; none: it reads those of others.
std::optional<LayoutRow> index_row(const Graph& graph, const IdVector<ValueId, OpId>& producers, const LayoutSite& site,
                                   const std::vector<Layout>& at, std::int64_t samples);

// Returns what reshaped() of layout.h cannot know of a single sample: the dim of `to` at the place where it lies in `from`; none: `to` has
// no dims.
std::optional<Layout> reshaped_single(const Layout& split, const Shape& from, const Shape& to);

}  // namespace penstock
