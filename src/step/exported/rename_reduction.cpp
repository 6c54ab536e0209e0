// SPDX-License-Identifier: Apache-2.0
#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

Integers dims_of(const NamedCall& call) {
  return attribute_or(call.op, "dim", Integers());
}

// ATen casts first, where another dtype is asked for.
Tensor in_asked_dtype(const NamedCall& call) {
  const Tensor x = call.operand(0);
  return call.op.attributes.contains("dtype") ? cast(x, call.results[0].dtype) : x;
}

template <Tensor (*Reduce)(Tensor, Integers, bool)>
Tensors reduced(const NamedCall& call) {
  return {Reduce(in_asked_dtype(call), dims_of(call), attribute_or(call.op, "keepdim", false))};
}

Tensors summed_up(const NamedCall& call) {
  return {cumsum(in_asked_dtype(call), static_cast<int>(attribute<std::int64_t>(call.op, "dim")))};
}

Tensors counted_up(const NamedCall& call) {
  const Tensor x = call.operand(0);
  const auto given = call.op.attributes.find("dim");
  const auto* one = given == call.op.attributes.end() ? nullptr : std::get_if<std::int64_t>(&given->second);
  return {sum(x.dtype() == DType::boolean ? x : ne(x, 0.0), one ? Integers{*one} : dims_of(call))};
}

// The product of two tensors of one dim.
Tensors inner_product(const NamedCall& call) {
  return {sum(call.operand(0) * call.operand(1))};
}

// Places that are no numbers count as zero.
Tensors sum_of_numbers(const NamedCall& call) {
  const Tensor x = in_asked_dtype(call);
  return {sum(where(ne(x, x), full(x, {}, 0, x.dtype()), x), dims_of(call), attribute_or(call.op, "keepdim", false))};
}

// The norms that are functions of a sum.
Tensors norm_of_vector(const NamedCall& call) {
  const Tensor x = in_asked_dtype(call);
  const double order = number_attribute_or(call.op, "ord", 2);
  const bool kept = attribute_or(call.op, "keepdim", false);
  if (order == 1) return {sum(abs(x), dims_of(call), kept)};
  return order == 2 ? Tensors{sqrt(sum(x * x, dims_of(call), kept))} : Tensors();
}

}  // namespace

std::span<const RenameRow> reduction_rows() {
  static constexpr RenameRow all[] = {
      {"aten::sum", reduced<sum>},
      {"aten::sum.dim_IntList", reduced<sum>},
      {"aten::mean", reduced<mean>},
      {"aten::mean.dim", reduced<mean>},
      {"aten::amax", reduced<amax>},
      {"aten::cumsum", summed_up},
      {"aten::count_nonzero", counted_up},
      {"aten::count_nonzero.dim_IntList", counted_up},
      {"aten::dot", inner_product},
      {"aten::nansum", sum_of_numbers},
      {"aten::linalg_vector_norm", norm_of_vector},
  };
  return all;
}

}  // namespace penstock
