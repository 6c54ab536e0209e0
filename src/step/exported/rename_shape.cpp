// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "base/text.h"
#include "exported/rename_rows.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

int dim_of(const NamedCall& call) {
  return static_cast<int>(attribute_or(call.op, "dim", std::int64_t{0}));
}

// The dim of a tensor of that rank, counted from the front. Throws Error where it has none such.
int dim_of(const NamedCall& call, std::int64_t rank) {
  const std::int64_t dim = wrap(dim_of(call), rank);
  if (dim < 0 || dim >= rank) throw Error(concat(call.op.name, ": dim is outside the ", rank, " dims"));
  return static_cast<int>(dim);
}

// The result's layout in memory is the executor's business, so a copy in another layout is the value itself.
Tensors same(const NamedCall& call) {
  return {cast(call.operand(0), call.results[0].dtype)};
}

// x[..., k] where `rows` is x as a matrix; none where `rows` was not made so.
Tensor before_rows(Tensor rows) {
  const Op* reshaped = made_by(rows, "reshape");
  if (!reshaped || rows.rank() != 2) return {};
  const Tensor x = operand_of(rows, *reshaped, 0);
  return x.rank() > 0 && x.size(-1) == rows.size(1) ? x : Tensor();
}

//   %1 = reshape(%x) {shape=[n*m, k]}; %2 = linear(%1, %w, %b); %3 = reshape(%2) {shape=[n, m, o]}  ~~>  %3 = linear(%x, %w, %b)
Tensor linear_of_more_dims(const NamedCall& call) {
  const Op* product = made_by(call.operand(0), "linear");
  if (!product || call.readers[0] != 1) return {};
  const Tensor x = before_rows(operand_of(call.operand(0), *product, 0));
  if (!x) return {};
  Shape shape = x.shape();
  shape.back() = call.operand(0).size(1);
  if (shape != call.results[0].shape) return {};
  const bool biased = product->operands.size() == 3;
  return linear(x, operand_of(x, *product, 1), biased ? operand_of(x, *product, 2) : Tensor());
}

//   %1 = sum(%x) {dim=[0], keepdim=true}; %2 = reshape(%1) {shape=[n]}  ~~>  %2 = sum(%x) {dim=[0]}
Tensor sum_without_kept(const NamedCall& call) {
  const Op* kept = made_by(call.operand(0), "sum");
  if (!kept || call.readers[0] != 1 || !attribute_or(*kept, "keepdim", false)) return {};
  const Integers dims = attribute<Integers>(*kept, "dim");
  Shape shape = call.operand(0).shape();
  for (std::size_t i = dims.size(); i-- > 0;) shape.erase(shape.begin() + dims[i]);
  return shape == call.results[0].shape ? sum(operand_of(call.operand(0), *kept, 0), dims) : Tensor();
}

Tensors reshaped(const NamedCall& call) {
  if (const Tensor product = linear_of_more_dims(call)) return {product};
  if (const Tensor total = sum_without_kept(call)) return {total};
  return {reshape(call.operand(0), call.results[0].shape)};
}

Tensors flipped(const NamedCall& call) {
  if (call.operand(0).rank() < 2) return same(call);
  return {exchanged(call.operand(0), 0, 1)};
}

Tensors transposed(const NamedCall& call) {
  if (call.operand(0).rank() == 0) return same(call);
  return {exchanged(call.operand(0), attribute<std::int64_t>(call.op, "dim0"), attribute<std::int64_t>(call.op, "dim1"))};
}

Tensors permuted(const NamedCall& call) {
  return {permute(call.operand(0), attribute<Integers>(call.op, "dims"))};
}

Tensors expanded(const NamedCall& call) {
  return {expand(call.operand(0), call.results[0].shape)};
}

Tensors unsqueezed(const NamedCall& call) {
  return {unsqueeze(call.operand(0), dim_of(call))};
}

// The result's shape says which dims are squeezed.
Tensors squeezed(const NamedCall& call) {
  return {reshape(call.operand(0), call.results[0].shape)};
}

std::int64_t end_of(const NamedCall& call) {
  return attribute_or(call.op, "end", std::numeric_limits<std::int64_t>::max());
}

// A range of everything is the value itself.
Tensors sliced(const NamedCall& call) {
  if (call.results[0].shape == call.operand(0).shape()) return same(call);
  return {slice(call.operand(0), dim_of(call), attribute_or(call.op, "start", std::int64_t{0}), end_of(call),
                attribute_or(call.op, "step", std::int64_t{1}))};
}

Tensors sliced_backward(const NamedCall& call) {
  if (call.results[0].shape == call.operand(0).shape()) return same(call);
  const std::int64_t dim = dim_of(call, std::ssize(call.results[0].shape)), size = call.results[0].shape[static_cast<std::size_t>(dim)];
  return {emit("slice_backward", {call.operand(0)},
               {{"dim", dim},
                {"start", attribute_or(call.op, "start", std::int64_t{0})},
                {"end", std::min(end_of(call), size)},
                {"step", attribute_or(call.op, "step", std::int64_t{1})},
                {"input_sizes", call.results[0].shape}})};
}

Tensors selected(const NamedCall& call) {
  return {select(call.operand(0), dim_of(call), attribute<std::int64_t>(call.op, "index"))};
}

Tensors selected_backward(const NamedCall& call) {
  return {emit("select_backward", {call.operand(0)},
               {{"dim", std::int64_t{dim_of(call, std::ssize(call.results[0].shape))}},
                {"index", attribute<std::int64_t>(call.op, "index")},
                {"input_sizes", call.results[0].shape}})};
}

// The parts of a tensor along dim, one behind the other, as large as the results are.
Tensors parts(const NamedCall& call) {
  const int dim = dim_of(call, call.operand(0).rank());
  Tensors out;
  std::int64_t begin = 0;
  for (const TensorType& part : call.results) {
    if (std::ssize(part.shape) <= dim) return {};
    const std::int64_t end = begin + part.shape[static_cast<std::size_t>(dim)];
    out.push_back(slice(call.operand(0), dim, begin, end));
    begin = end;
  }
  return out;
}

Tensors split_evenly(const NamedCall& call) {
  return split(call.operand(0), attribute<std::int64_t>(call.op, "split_size"), dim_of(call));
}

Tensors unbound(const NamedCall& call) {
  Tensors out;
  for (std::size_t i = 0; i < call.results.size(); ++i) out.push_back(select(call.operand(0), dim_of(call), static_cast<std::int64_t>(i)));
  return out;
}

Tensors joined(const NamedCall& call) {
  Tensors operands;
  for (const Tensor& part : call.operands)
    if (part.shape() != Shape{0}) operands.push_back(cast(part, call.results[0].dtype));  // which ATen leaves out
  return {operands.size() == 1 ? operands[0] : cat(operands, dim_of(call))};
}

Tensors stacked(const NamedCall& call) {
  Tensors operands;
  for (const Tensor& part : call.operands) operands.push_back(cast(part, call.results[0].dtype));
  return {stack(operands, dim_of(call, std::ssize(call.results[0].shape)))};
}

// Whether these strides are those of a dense tensor of that shape, row after row, from its beginning on.
bool is_dense(const Op& op, const Shape& shape) {
  const Integers& strides = attribute<Integers>(op, "stride");
  if (strides.size() != shape.size()) return false;
  std::int64_t dense = 1;
  for (std::size_t d = shape.size(); d-- > 0; dense *= shape[d])
    if (shape[d] != 1 && strides[d] != dense) return false;
  return attribute_or(op, "storage_offset", std::int64_t{0}) == 0;
}

// All of a tensor in another shape; other strides have no meaning here.
Tensors restrided(const NamedCall& call) {
  const Shape& shape = call.results[0].shape;
  return is_dense(call.op, shape) ? Tensors{reshape(call.operand(0), shape)} : Tensors();
}

// (x, values) -> x, all of it overwritten
Tensors scattered_by_strides(const NamedCall& call) {
  const Tensor values = call.operand(1);
  return is_dense(call.op, values.shape()) ? Tensors{reshape(values, call.results[0].shape)} : Tensors();
}

// Repeats the tensor along each dim as often as `repeats` says; new dims are in front.
Tensors repeated(const NamedCall& call) {
  const Integers& repeats = attribute<Integers>(call.op, "repeats");
  Tensor x = call.operand(0);
  while (x.rank() < std::ssize(repeats)) x = unsqueeze(x, 0);
  if (x.rank() > std::ssize(repeats)) return {};
  Shape whole;
  for (std::size_t d = 0; d < repeats.size(); ++d) {
    const int at = static_cast<int>(whole.size());
    if (repeats[d] != 1) {
      x = unsqueeze(x, at);
      whole.push_back(repeats[d]);
    }
    whole.push_back(x.size(static_cast<int>(whole.size())));
  }
  return {reshape(expand(x, whole), call.results[0].shape)};
}

// (x, values) -> x, overwritten by the values
Tensors overwritten(const NamedCall& call) {
  return {expand(cast(call.operand(1), call.results[0].dtype), call.results[0].shape)};
}

// x with the places from begin to end along dim replaced.
Tensor with_part(Tensor x, Tensor part, int dim, std::int64_t begin, std::int64_t end) {
  Tensors all;
  if (begin > 0) all.push_back(slice(x, dim, 0, begin));
  all.push_back(cast(part, x.dtype()));
  if (end < x.size(dim)) all.push_back(slice(x, dim, end, x.size(dim)));
  return all.size() == 1 ? all[0] : cat(all, dim);
}

// (x, part) -> x, with a range replaced
Tensors slice_replaced(const NamedCall& call) {
  if (attribute_or(call.op, "step", std::int64_t{1}) != 1) return {};
  const Tensor x = call.operand(0), part = call.operand(1);
  const int dim = dim_of(call, x.rank());
  const std::int64_t begin = std::clamp<std::int64_t>(wrap(attribute_or(call.op, "start", std::int64_t{0}), x.size(dim)), 0, x.size(dim));
  return {with_part(x, part, dim, begin, begin + part.size(dim))};
}

// (x, part) -> x, with one place along dim replaced
Tensors place_replaced(const NamedCall& call) {
  const Tensor x = call.operand(0);
  const int dim = dim_of(call, x.rank());
  const std::int64_t index = wrap(attribute<std::int64_t>(call.op, "index"), x.size(dim));
  return {with_part(x, unsqueeze(call.operand(1), dim), dim, index, index + 1)};
}

// A constant beyond the edges of x; `pad` has the widths before and behind of the last dim, then of those before it.
Tensors padded(const NamedCall& call) {
  const Integers& widths = attribute<Integers>(call.op, "pad");
  return {pad(call.operand(0), widths, "constant", number_attribute_or(call.op, "value", 0))};
}

}  // namespace

Tensor exchanged(Tensor x, std::int64_t dim0, std::int64_t dim1) {
  const std::int64_t a = wrap(dim0, x.rank()), b = wrap(dim1, x.rank());
  if (a == b) return x;
  const Op* before = made_by(x, "transpose");
  if (before && attribute<std::int64_t>(*before, "dim0") == std::min(a, b) && attribute<std::int64_t>(*before, "dim1") == std::max(a, b))
    return operand_of(x, *before, 0);
  return transpose(x, static_cast<int>(a), static_cast<int>(b));
}

std::span<const RenameRow> shape_rows() {
  static constexpr RenameRow all[] = {
      {"aten::clone", same},
      {"aten::detach", same},
      {"aten::alias", same},
      {"aten::lift_fresh_copy", same},
      {"aten::_to_copy", same},
      {"aten::view", reshaped},
      {"aten::_unsafe_view", reshaped},
      {"aten::reshape", reshaped},
      {"aten::t", flipped},
      {"aten::transpose.int", transposed},
      {"aten::permute", permuted},
      {"aten::expand", expanded},
      {"aten::unsqueeze", unsqueezed},
      {"aten::squeeze", squeezed},
      {"aten::squeeze.dim", squeezed},
      {"aten::squeeze.dims", squeezed},
      {"aten::slice.Tensor", sliced},
      {"aten::slice_backward", sliced_backward},
      {"aten::select.int", selected},
      {"aten::select_backward", selected_backward},
      {"aten::split.Tensor", split_evenly},
      {"aten::split_with_sizes", parts},
      {"aten::unbind.int", unbound},
      {"aten::as_strided", restrided},
      {"aten::as_strided_scatter", scattered_by_strides},
      {"aten::repeat", repeated},
      {"aten::copy", overwritten},
      {"aten::fill.Tensor", overwritten},
      {"aten::slice_scatter", slice_replaced},
      {"aten::select_scatter", place_replaced},
      {"aten::constant_pad_nd", padded},
      {"aten::cat", joined},
      {"aten::stack", stacked},
  };
  return all;
}

}  // namespace penstock
