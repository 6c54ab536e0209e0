// SPDX-License-Identifier: Apache-2.0
// Attention over a sequence of which each member of an axis has a part, and reads keys and values part by part (as ring attention does,
// 2310.01889, but each part goes straight to who needs it). What queries make of some keys and of others is joined exactly by the
// logsumexps of both; the backward of a part needs nothing but the whole's logsumexp.
//
// A causal mask leaves queries only the keys before them. Sequences are split mirrored then: member m of N has the chunks m and 2N-1-m of
// 2N. Of a member before it, it needs the first chunk, for both of its own; of one behind it both chunks, for its second: two products of
// chunks in either case, so all members have the same to do, and 3/4 of what an all_gather sends is sent.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "transform/conversions.h"
#include "transform/layouts.h"

namespace penstock {

// The place of the queries among the operands of attention or of its backward; none: the op is neither.
std::optional<std::size_t> queries_of(const Op& op);
// The row in which attention, or its backward, is computed in parts, where queries lie so; none: the members have no equal parts so.
std::optional<LayoutRow> row_in_parts(const LayoutSite& site, const Layout& queries);
bool is_in_parts(const Op& op, const LayoutRow& row);

// Computes the member's part of the results of attention in parts, for which `site` stands, from its parts of the operands. Messages of
// different ops have different numbers: `op_number` is the op's, on all members.
std::vector<ValueId> attention_in_parts(const ConversionSite& site, const std::vector<ValueId>& operands, std::int64_t op_number);

// Bytes that each member sends for it, on average.
double bytes_in_parts(const Graph& graph, const Op& op, std::int64_t members);

// Whether the step has an attention of fewer heads than members.
bool has_few_heads(const Graph& step, std::int64_t members);
// Throws Error for an attention whose sequences cannot be split into equal parts.
void check_parts(const Graph& step, std::string_view axis, std::int64_t members);

}  // namespace penstock
