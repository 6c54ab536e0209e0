// SPDX-License-Identifier: Apache-2.0
// Which dims of operands and results of ops by name are the samples'.
#pragma once

#include <optional>
#include <span>

#include "penstock/layout.h"

namespace penstock {

// The ways in which an op by name reads its operands.
enum class NamedKind : std::uint8_t {
  unknown,
  elementwise,  // element by element, with broadcasting
  loss,         // likewise, and then by the attribute "reduction": not (0), to a mean (1), to a sum (2)
  first,        // dim 0 is the samples'
  leading,      // all dims but the last two are
  channels,     // dim 1 is kept apart, as by batch norms; of results of one dim it is that
  along,        // the attribute "dim" says along which dims; all others are by themselves
  draw,         // random numbers
};
NamedKind kind_of_named(std::string_view name);

// The row (layouts.h) in which an op by name keeps samples apart, where its operands lie as `from` says; `operand` is one that is split.
// None: it does not, or nobody knows. Not of aten::index.
std::optional<LayoutRow> named_row(const LayoutSite& site, std::size_t operand, std::span<const Layout> from);

// Returns the `reduction` of a loss by name, 0, 1 or 2; none where it is no such loss.
std::optional<std::int64_t> named_reduction(const Op& op);

// The row of an op of ours that picks, along a dim of what is the same for all samples, by indices of theirs; none: it is no such op.
std::optional<LayoutRow> picks_row(const LayoutSite& site, std::span<const Layout> from);

}  // namespace penstock
