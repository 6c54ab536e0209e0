// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorUtils.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <limits>

#include "torch/copy.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;
using Integers = std::vector<std::int64_t>;

std::int64_t integer(const Op& op, std::string_view name) {
  return attribute<std::int64_t>(op, name);
}

// The tensor with another shape over the same memory; undefined where its strides do not allow it.
T reshaped(const T& x, const Shape& shape) {
  const auto strides = at::detail::computeStride(x.sizes(), x.strides(), at::IntArrayRef(shape));
  return strides ? x.as_strided(shape, *strides, x.storage_offset()) : T();
}

T view_reshape(const Op&, const TensorType& result, const T& x, std::size_t) {
  return reshaped(x, result.shape);
}
T unview_reshape(const Op&, const TensorType& operand, const T& result) {
  return reshaped(result, operand.shape);
}

T view_transpose(const Op& op, const TensorType&, const T& x, std::size_t) {
  return x.transpose(integer(op, "dim0"), integer(op, "dim1"));
}
T unview_transpose(const Op& op, const TensorType&, const T& result) {
  return result.transpose(integer(op, "dim0"), integer(op, "dim1"));
}

T view_permute(const Op& op, const TensorType&, const T& x, std::size_t) {
  return x.permute(attribute<Integers>(op, "dims"));
}
T unview_permute(const Op& op, const TensorType&, const T& result) {
  const auto& dims = attribute<Integers>(op, "dims");
  Integers inverse(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i)
    inverse[static_cast<std::size_t>(wrap(dims[i], static_cast<std::int64_t>(dims.size())))] = static_cast<std::int64_t>(i);
  return result.permute(inverse);
}

T view_expand(const Op&, const TensorType& result, const T& x, std::size_t) {
  return x.expand(result.shape);
}

T view_slice(const Op& op, const TensorType&, const T& x, std::size_t) {
  return x.slice(integer(op, "dim"), attribute_or(op, "start", std::int64_t{0}),
                 attribute_or(op, "end", std::numeric_limits<std::int64_t>::max()), attribute_or(op, "step", std::int64_t{1}));
}

T view_select(const Op& op, const TensorType&, const T& x, std::size_t) {
  return x.select(integer(op, "dim"), integer(op, "index"));
}

T view_split(const Op& op, const TensorType&, const T& x, std::size_t i) {
  const std::int64_t dim = integer(op, "dim"), size = integer(op, "split_size"), begin = static_cast<std::int64_t>(i) * size;
  return x.narrow(dim, begin, std::min(size, x.size(dim) - begin));
}

T view_same(const Op&, const TensorType&, const T& x, std::size_t) {
  return x;
}
T unview_same(const Op&, const TensorType&, const T& result) {
  return result;
}

Bound in_order(std::vector<Bound> calls) {
  return [calls = std::move(calls)] {
    for (const Bound& call : calls)
      if (call) call();
  };
}

// Copies what a view op shows, for a result that needs memory of its own.
template <T (*View)(const Op&, const TensorType&, const T&, std::size_t)>
Bound bind_view_copy(const Site& site) {
  std::vector<Bound> copies;
  for (std::size_t i = 0; i < site.results.size(); ++i)
    copies.push_back(bind_copy(site.results[i], View(site.op, site.graph.type(site.op.results[i]), site.operands[0], i)));
  return in_order(std::move(copies));
}

// Where the operand cannot be viewed in the new shape, the result is viewed in the operand's shape and written so.
Bound bind_reshape(const Site& site) {
  const T &x = site.operands[0], &out = site.results[0];
  const T as_operand = reshaped(out, site.graph.type(site.op.operands[0]).shape);
  if (as_operand.defined()) return bind_copy(as_operand, x);
  return [x, out] { out.copy_(x.reshape(out.sizes())); };
}

// Fills the result with zeros, and the part that `view` shows with the operand.
Bound bind_into_zeros(const Site& site, T (*view)(const Op&, const TensorType&, const T&, std::size_t)) {
  const T &out = site.results[0], &x = site.operands[0], place = view(site.op, {}, out, 0);
  if (site.accumulate) return [place, x] { place.add_(x); };
  return in_order({[out] { out.zero_(); }, bind_copy(place, x)});
}

Bound bind_cat(const Site& site) {
  std::vector<Bound> copies;
  const std::int64_t dim = integer(site.op, "dim");
  std::int64_t begin = 0;
  for (const T& part : site.operands) {
    copies.push_back(bind_copy(site.results[0].narrow(dim, begin, part.size(dim)), part));
    begin += part.size(dim);
  }
  return in_order(std::move(copies));
}

Bound bind_to(const Site& site) {
  const T &x = site.operands[0], &out = site.results[0];
  if (is_dense<float>(x) && is_dense<Bf16>(out))
    return [f = vector_kernels().to_bf16, p = floats(x), q = Place<Bf16>(out), n = x.numel()] { f(p, q, n); };
  if (is_dense<Bf16>(x) && is_dense<float>(out))
    return [f = vector_kernels().to_f32, p = Place<const Bf16>(x), q = mutable_floats(out), n = x.numel()] { f(p, q, n); };
  return unary(site, [](T& o, const T& a) { o.copy_(a); });
}

Bound bind_full(const Site& site) {
  return [out = site.results[0], value = at::Scalar(number_attribute(site.op, "fill_value"))] { out.fill_(value); };
}

Bound bind_arange(const Site& site) {
  const T& out = site.results[0];
  return [out, values = at::arange(out.numel(), out.options())] { out.copy_(values); };
}

}  // namespace

std::span<const Kernel> shape_kernels() {
  static const Kernel all[] = {
      {.name = "reshape", .bind = bind_reshape, .view = view_reshape, .unview = unview_reshape},
      {.name = "unsqueeze", .bind = bind_reshape, .view = view_reshape, .unview = unview_reshape},
      {.name = "squeeze", .bind = bind_reshape, .view = view_reshape, .unview = unview_reshape},
      {.name = "transpose", .bind = bind_view_copy<view_transpose>, .view = view_transpose, .unview = unview_transpose},
      {.name = "permute", .bind = bind_view_copy<view_permute>, .view = view_permute, .unview = unview_permute},
      {.name = "expand", .bind = bind_view_copy<view_expand>, .view = view_expand},
      {.name = "slice", .bind = bind_view_copy<view_slice>, .view = view_slice},
      {.name = "select", .bind = bind_view_copy<view_select>, .view = view_select},
      {.name = "split", .bind = bind_view_copy<view_split>, .view = view_split},
      {.name = "stage_boundary", .bind = bind_view_copy<view_same>, .view = view_same, .unview = unview_same},
      {.name = "detach", .bind = bind_view_copy<view_same>, .view = view_same, .unview = unview_same},
      {.name = "constrain", .bind = bind_view_copy<view_same>, .view = view_same, .unview = unview_same},
      {.name = "slice_backward", .bind = [](const Site& s) { return bind_into_zeros(s, view_slice); }, .accumulates = 1},
      {.name = "select_backward", .bind = [](const Site& s) { return bind_into_zeros(s, view_select); }, .accumulates = 1},
      {.name = "cat", .bind = bind_cat},
      {.name = "to", .bind = bind_to},
      {.name = "full", .bind = bind_full},
      {.name = "arange", .bind = bind_arange},
  };
  return all;
}

}  // namespace penstock
