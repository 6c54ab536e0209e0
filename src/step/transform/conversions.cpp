// SPDX-License-Identifier: Apache-2.0
#include "transform/conversions.h"

#include <algorithm>

#include "base/invariant.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "penstock/program.h"

namespace penstock {
namespace {

ValueId reshape_to(const ConversionSite& s, ValueId v, Shape shape) {
  return s.graph.type(v).shape == shape ? v : add_beside(s, "reshape", {v}, {{"shape", std::move(shape)}});
}

// Elements of a piece of so many, filled up to a multiple of what devices move.
std::int64_t filled(DType dtype, std::int64_t elements) {
  const std::int64_t size = byte_size(dtype);
  return (elements * size + kAlignment - 1) / kAlignment * kAlignment / size;
}

// The tensor flat, with zeros behind it up to so many elements.
ValueId packed(const ConversionSite& s, ValueId v, std::int64_t elements) {
  const TensorType type = s.graph.type(v);
  const std::int64_t missing = elements - type.elements();
  const ValueId flat = reshape_to(s, v, {type.elements()});
  if (missing == 0) return flat;
  return cat_of(s, {flat, add_beside(s, "full", {}, {{"dtype", type.dtype}, {"fill_value", 0.0}, {"size", Integers{missing}}})}, 0);
}

// A view of `v` as [blocks, size, inner], with the split dim's blocks and sizes as `v` has them.
Shape blocks_of(const ConversionSite& s, ValueId v, const Layout& split) {
  const LayoutView view = view_of(split, s.graph.type(v).shape);
  return {view.blocks, view.size, view.inner};
}

// One of the two halves of each pair of a mirrored split's blocks, as [pairs, 1, size, inner].
ValueId half_of(const ConversionSite& s, ValueId v, const Layout& split, std::int64_t half) {
  const Shape blocks = blocks_of(s, v, split);
  return slice_of(s, reshape_to(s, v, {blocks[0] / 2, 2, blocks[1], blocks[2]}), 1, half, half + 1);
}

ValueId mirrored_part_of(const ConversionSite& s, ValueId v, const Layout& split, std::int64_t member) {
  const TensorType type = s.graph.type(v);
  std::vector<ValueId> halves;
  for (const std::int64_t half : {0, 1}) {
    const std::int64_t as = half == 0 ? member : s.axis.size - 1 - member;
    const LayoutRange range = range_of(split, blocks_of(s, v, split)[1], s.axis.size, as);
    halves.push_back(slice_of(s, half_of(s, v, split, half), 2, range.begin, range.end));
  }
  return reshape_to(s, cat_of(s, std::move(halves), 1), local_type(type, split, s.axis.size, member).shape);
}

std::vector<ValueId> parts_of(const ConversionSite& s, ValueId v, const Layout& split) {
  std::vector<ValueId> parts;
  for (std::int64_t m = 0; m < s.axis.size; ++m) parts.push_back(part_of(s, v, split, m));
  return parts;
}

ValueId mirrored_joined(const ConversionSite& s, std::vector<ValueId> parts, const Layout& split, const Shape& shape) {
  std::vector<ValueId> halves;
  for (const std::int64_t half : {0, 1}) {
    std::vector<ValueId> ordered;
    for (ValueId part : parts) ordered.push_back(half_of(s, part, split, half));
    halves.push_back(cat_of(s, std::move(ordered), 2));
    std::ranges::reverse(parts);
  }
  return reshape_to(s, cat_of(s, std::move(halves), 1), shape);
}

// Elements of the members' pieces, all of one length. Where they differ every one is filled: the members do the same ops, so that axes that
// follow find the same layouts for what all of them give.
std::int64_t piece_elements(const std::vector<TensorType>& types) {
  const auto [least, most] = std::ranges::minmax(types, {}, &TensorType::elements);
  return filled(most.dtype, most.elements() + (least.elements() < most.elements()));
}

// Pieces for all members, in order, flat and of equal length.
ValueId packed_for_all(const ConversionSite& s, const std::vector<ValueId>& parts, std::int64_t piece) {
  std::vector<ValueId> flat;
  for (ValueId part : parts) flat.push_back(packed(s, part, piece));
  return cat_of(s, std::move(flat), 0);
}

// The pieces of `v`, each in the shape of its type.
std::vector<ValueId> unpacked(const ConversionSite& s, ValueId v, const std::vector<TensorType>& types, std::int64_t piece) {
  std::vector<ValueId> parts;
  for (std::int64_t m = 0; const TensorType& type : types) {
    parts.push_back(reshape_to(s, slice_of(s, v, 0, m * piece, m * piece + type.elements()), type.shape));
    ++m;
  }
  return parts;
}

std::vector<TensorType> types_of_members(const ConversionSite& s, const TensorType& whole, const Layout& split) {
  std::vector<TensorType> types;
  for (std::int64_t m = 0; m < s.axis.size; ++m) types.push_back(local_type(whole, split, s.axis.size, m));
  return types;
}

// Whether the members' parts, one after the other, are the tensor as it lies in memory.
bool is_in_order(const TensorType& whole, const Layout& split, std::int64_t members) {
  return view_of(split, whole.shape).blocks == 1 && whole.elements() % members == 0 && split.units % members == 0 &&
         filled(whole.dtype, whole.elements() / members) == whole.elements() / members;
}

Attributes along(const ConversionSite& s, bool has_dim) {
  Attributes attributes = {{"axis", s.axis.name}, {"size", s.axis.size}};
  if (has_dim) attributes["dim"] = std::int64_t{0};
  return attributes;
}

// Sums are of dtypes that devices can sum. Threads add bf16 up in f32 and round once. So do processes, but where three or more get the
// whole sum: Gloo rounds after each addition there, so a sum of n terms is off by at most n - 1 roundings of 2^-9 of the largest partial
// sum.
ValueId summed(const ConversionSite& s, std::string_view name, ValueId v) {
  const DType dtype = s.graph.type(v).dtype;
  const bool casts = !can_be_summed(dtype);
  if (casts) v = add_beside(s, "to", {v}, {{"dtype", DType::f32}});
  v = add_beside(s, name, {v}, along(s, name != "all_reduce"));
  return casts ? add_beside(s, "to", {v}, {{"dtype", dtype}}) : v;
}

ValueId gathered(const ConversionSite& s, ValueId v, const TensorType& whole, const Layout& split) {
  const std::vector<TensorType> types = types_of_members(s, whole, split);
  const std::int64_t piece = piece_elements(types);
  // A tensor that needs no filling is gathered as it lies in memory.
  const bool filling = piece != s.graph.type(v).elements();
  const ValueId all = add_beside(s, "all_gather", {filling ? packed(s, v, piece) : v}, along(s, true));
  if (is_in_order(whole, split, s.axis.size)) return reshape_to(s, all, whole.shape);
  return whole_of(s, unpacked(s, reshape_to(s, all, {piece * s.axis.size}), types, piece), split, whole.shape);
}

ValueId scattered(const ConversionSite& s, ValueId v, const TensorType& whole, const Layout& split) {
  const std::vector<TensorType> types = types_of_members(s, whole, split);
  const std::int64_t piece = piece_elements(types);
  const TensorType& own = types[s.member];
  const bool in_order = is_in_order(whole, split, s.axis.size);
  if (in_order && whole.shape[0] % s.axis.size == 0) return reshape_to(s, summed(s, "reduce_scatter", v), own.shape);
  const ValueId all = in_order ? reshape_to(s, v, {whole.elements()}) : packed_for_all(s, parts_of(s, v, split), piece);
  return reshape_to(s, slice_of(s, summed(s, "reduce_scatter", all), 0, 0, own.elements()), own.shape);
}

// From one dim to another: member j's piece for member k is what j has of k's part.
ValueId exchanged(const ConversionSite& s, ValueId v, const TensorType& whole, const Layout& from, const Layout& to) {
  const std::vector<ValueId> parts = parts_of(s, v, to);
  const TensorType own = local_type(whole, to, s.axis.size, s.member);
  std::vector<TensorType> incoming;
  for (std::int64_t m = 0; m < s.axis.size; ++m) incoming.push_back(local_type(own, from, s.axis.size, m));
  std::vector<TensorType> pieces;  // of all members for all
  for (const TensorType& part : types_of_members(s, whole, to))
    for (const TensorType& type : types_of_members(s, part, from)) pieces.push_back(type);
  const std::int64_t piece = piece_elements(pieces);
  const ValueId all = add_beside(s, "all_to_all", {packed_for_all(s, parts, piece)}, along(s, true));
  return whole_of(s, unpacked(s, all, incoming, piece), from, own.shape);
}

// Piece i along a dim of what each member has, one after the other along that dim.
ValueId exchanged_pieces(const ConversionSite& s, ValueId v, std::int64_t dim) {
  const TensorType type = s.graph.type(v);
  const Layout split = split_layout(dim, 1, type.shape[dim], s.axis.size);
  if (is_in_order(type, split, s.axis.size)) {
    const ValueId flat = dim == 0 ? v : reshape_to(s, v, {type.elements()});
    return reshape_to(s, add_beside(s, "all_to_all", {flat}, along(s, true)), type.shape);
  }
  const std::vector<TensorType> types = types_of_members(s, type, split);
  const std::int64_t piece = piece_elements(types);
  const ValueId all = add_beside(s, "all_to_all", {packed_for_all(s, parts_of(s, v, split), piece)}, along(s, true));
  return whole_of(s, unpacked(s, all, types, piece), split, type.shape);
}

}  // namespace

bool is_zeros(const Op& op) {
  return op.name == "full" && attribute<double>(op, "fill_value") == 0;
}

ValueId part_of(const ConversionSite& s, ValueId v, const Layout& split, std::int64_t member) {
  if (split.mirrored) return mirrored_part_of(s, v, split, member);
  const TensorType type = s.graph.type(v);
  if (split.is_flat()) {
    const LayoutRange range = range_of(split, type.elements(), s.axis.size, member);
    return slice_of(s, reshape_to(s, v, {type.elements()}), 0, range.begin, range.end);
  }
  const Shape blocks = blocks_of(s, v, split);
  const LayoutRange range = range_of(split, blocks[1], s.axis.size, member);
  const bool in_place = split.outer == 1;
  const ValueId part = slice_of(s, in_place ? v : reshape_to(s, v, blocks), in_place ? split.dim : 1, range.begin, range.end);
  return reshape_to(s, part, local_type(type, split, s.axis.size, member).shape);
}

ValueId whole_of(const ConversionSite& s, std::vector<ValueId> parts, const Layout& split, const Shape& shape) {
  if (split.mirrored) return mirrored_joined(s, std::move(parts), split, shape);
  if (split.outer > 1)
    for (ValueId& part : parts) part = reshape_to(s, part, blocks_of(s, part, split));
  return reshape_to(s, cat_of(s, std::move(parts), split.outer == 1 ? split.dim : 1), shape);
}

ValueId slice_of(const ConversionSite& s, ValueId v, std::int64_t dim, std::int64_t begin, std::int64_t end) {
  if (begin == 0 && end == s.graph.type(v).shape[dim]) return v;
  return add_beside(s, "slice", {v}, {{"dim", dim}, {"start", begin}, {"end", end}, {"step", std::int64_t{1}}});
}

ValueId cat_of(const ConversionSite& s, std::vector<ValueId> parts, std::int64_t dim) {
  return parts.size() == 1 ? parts[0] : add_beside(s, "cat", std::move(parts), {{"dim", dim}});
}

std::vector<ValueId> add_all_beside(const ConversionSite& s, std::string_view name, std::vector<ValueId> operands, Attributes attributes) {
  Op op;
  op.name = name;
  op.operands = std::move(operands);
  op.attributes = std::move(attributes);
  op.phase = s.marks.phase;
  op.origin = s.marks.origin;
  op.sequence = s.marks.sequence;
  if (!op.operands.empty()) op.stage = s.marks.stage;
  for (TensorType& type : find_op(name)->infer(op, types_of(s.graph, op.operands)))
    op.results.push_back(s.graph.add_value(std::move(type)));
  s.graph.ops.push_back(std::move(op));
  return s.graph.ops.back().results;
}

ValueId add_beside(const ConversionSite& s, std::string_view name, std::vector<ValueId> operands, Attributes attributes) {
  const std::vector<ValueId> results = add_all_beside(s, name, std::move(operands), std::move(attributes));
  invariant(results.size() == 1, "a conversion's op has one result");
  return results[0];
}

ValueId term_of_first(const ConversionSite& s, ValueId whole) {
  return add_beside(s, "mul", {whole}, {{"other", s.member == 0 ? 1.0 : 0.0}});
}

ValueId convert(const ConversionSite& s, ValueId v, const TensorType& whole, const Layout& from, const Layout& to) {
  invariant(from != to, "a conversion's target is another layout");
  if (to.is_term()) return term_of_first(s, from.is_whole() ? v : convert(s, v, whole, from, kWhole));
  if (from.is_whole()) return part_of(s, v, to, s.member);
  invariant(!from.is_flat() && !to.is_flat(), "what is flat is gathered and summed a block at a time");
  if (from.is_term()) return to.is_whole() ? summed(s, "all_reduce", v) : scattered(s, v, whole, to);
  if (to.is_whole()) return gathered(s, v, whole, from);
  if (from.dim != to.dim) return exchanged(s, v, whole, from, to);
  return part_of(s, gathered(s, v, whole, from), to, s.member);
}

ValueId pack_collective(const ConversionSite& s, const Op& op, ValueId v) {
  if (op.name == "all_reduce" || op.name == "broadcast" || op.name == "shift_members") return add_beside(s, op.name, {v}, op.attributes);
  const auto dim = attribute<std::int64_t>(op, "dim");
  if (op.name == "all_to_all") return exchanged_pieces(s, v, dim);
  TensorType whole = s.graph.type(v);
  if (op.name == "all_gather") whole.shape[dim] *= s.axis.size;
  const Layout split = split_layout(dim, 1, whole.shape[dim], s.axis.size);
  return op.name == "all_gather" ? gathered(s, v, whole, split) : scattered(s, v, whole, split);
}

}  // namespace penstock
