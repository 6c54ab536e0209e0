// SPDX-License-Identifier: Apache-2.0
// Conversions between the layouts of one axis, as ops that a member runs: packing, a collective along dim 0 of flat tensors of one length
// on all members, unpacking. Devices move equal pieces that are multiples of 64 bytes, so what is uneven is filled up with zeros on the
// way.
#pragma once

#include "penstock/graph.h"
#include "penstock/layout.h"
#include "penstock/ops.h"

namespace penstock {

struct ConversionSite {
  Graph& graph;     // the member's, which the ops are added to
  const Op& marks;  // of the op for which they stand
  MeshAxis axis;
  std::int64_t member = 0;
};

// `value` is what the member has of a tensor of type `whole` in layout `from`; returns what it has of it in layout `to`. `from` and `to`
// differ, flat is made of whole alone, and a term of what was whole is the first member's: the others have zeros.
ValueId convert(const ConversionSite& site, ValueId value, const TensorType& whole, const Layout& from, const Layout& to);

// Returns the term that stands for `whole` in a sum with terms: the first member alone adds it. The others add nothing of it, but read it
// too: all members have the same ops, which find their places alike.
ValueId term_of_first(const ConversionSite& site, ValueId whole);

// Returns the result of an all_reduce, all_gather, reduce_scatter, broadcast or all_to_all that a user wrote along any dim: the
// same by way of flat tensors that devices can move.
ValueId pack_collective(const ConversionSite& site, const Op& collective, ValueId value);

// Whether all elements of the op's result are 0, whatever the batch: they are, then, in every layout.
bool is_zeros(const Op& op);

// A member's part of `v`, which is whole, where it is split; and the whole tensor of this shape, of all members' parts.
ValueId part_of(const ConversionSite& site, ValueId v, const Layout& split, std::int64_t member);
ValueId whole_of(const ConversionSite& site, std::vector<ValueId> parts, const Layout& split, const Shape& shape);

// The value from `begin` to `end` along a dim, and values one behind the other along it: by an op, where it takes one.
ValueId slice_of(const ConversionSite& site, ValueId v, std::int64_t dim, std::int64_t begin, std::int64_t end);
ValueId cat_of(const ConversionSite& site, std::vector<ValueId> parts, std::int64_t dim);

// Adds an op, of one result or of several, with the marks that it stands for.
std::vector<ValueId> add_all_beside(const ConversionSite& site, std::string_view name, std::vector<ValueId> operands,
                                    Attributes attributes);
ValueId add_beside(const ConversionSite& site, std::string_view name, std::vector<ValueId> operands, Attributes attributes);

}  // namespace penstock
