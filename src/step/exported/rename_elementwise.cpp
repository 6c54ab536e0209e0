// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

// The operands of an op of two, each a tensor, or a number as tensor or as attribute.
struct Sides {
  Tensor a, b;  // b is none where it is the attribute "other"
  std::optional<double> number;
};

Sides sides_of(const NamedCall& call) {
  Sides sides{call.operand(0), call.operands.size() > 1 ? call.operand(1) : Tensor(), {}};
  sides.number = sides.b ? constant_number(sides.b) : number_attribute(call.op, "other");
  return sides;
}

// The factor of the second operand.
double alpha_of(const NamedCall& call) {
  return number_attribute_or(call.op, "alpha", 1);
}

// Both sides are computed in the result's dtype, as ATen promotes them.
template <Tensor (*Make)(Tensor, TensorOrNumber)>
Tensors sum_or_difference(const NamedCall& call) {
  const Sides sides = sides_of(call);
  const DType dtype = call.results[0].dtype;
  const double alpha = alpha_of(call);
  if (sides.number && sides.a.shape() == call.results[0].shape) {
    const Tensor a = cast(sides.a, dtype);
    return {*sides.number == 0 && !is_floating(dtype) ? a : Make(a, *sides.number * alpha)};
  }
  Tensor b = cast(sides.b, dtype);
  if (alpha != 1) b = b * alpha;
  return {Make(cast(sides.a, dtype), b)};
}

Tensors addition(const NamedCall& call) {
  const std::optional<double> first = constant_number(call.operand(0));
  if (first && alpha_of(call) == 1 && call.operands.size() > 1 && call.operand(1).shape() == call.results[0].shape)
    return {add(cast(call.operand(1), call.results[0].dtype), *first)};
  return sum_or_difference<add>(call);
}

// A number minus a tensor is the same as the tensor's negative plus the number, to the bit.
Tensors difference(const NamedCall& call) {
  const std::optional<double> first = constant_number(call.operand(0));
  if (first && alpha_of(call) == 1 && call.operands.size() > 1 && is_floating(call.results[0].dtype) &&
      call.operand(1).shape() == call.results[0].shape)
    return {neg(cast(call.operand(1), call.results[0].dtype)) + *first};
  return sum_or_difference<sub>(call);
}

Tensors reversed_difference(const NamedCall& call) {
  if (alpha_of(call) != 1 || !is_floating(call.results[0].dtype) || call.operands.size() > 1) return {};
  return {neg(cast(call.operand(0), call.results[0].dtype)) + number_attribute(call.op, "other")};
}

Tensors product(const NamedCall& call) {
  Sides sides = sides_of(call);
  const DType dtype = call.results[0].dtype;
  if (dtype == DType::boolean) return {logical_and(sides.a, sides.b)};
  if (!sides.number && sides.b) {
    sides.number = constant_number(sides.a);
    if (sides.number) std::swap(sides.a, sides.b);
  }
  if (sides.number && sides.a.shape() == call.results[0].shape) return {cast(sides.a, dtype) * *sides.number};
  return {cast(sides.a, dtype) * cast(sides.b, dtype)};
}

Tensors quotient(const NamedCall& call) {
  const Sides sides = sides_of(call);
  const DType dtype = call.results[0].dtype;
  if (sides.number && sides.a.shape() == call.results[0].shape) return {cast(sides.a, dtype) / *sides.number};
  return {cast(sides.a, dtype) / cast(sides.b, dtype)};
}

// A number is compared in the tensor's dtype, so an integer with a fraction cannot be.
template <Tensor (*Make)(Tensor, TensorOrNumber)>
Tensors comparison(const NamedCall& call) {
  const Sides sides = sides_of(call);
  if (sides.number && (is_floating(sides.a.dtype()) || *sides.number == std::floor(*sides.number)) &&
      sides.a.shape() == call.results[0].shape)
    return {Make(sides.a, *sides.number)};
  return {Make(sides.a, sides.b)};
}

Tensors power(const NamedCall& call) {
  const Tensor x = cast(call.operand(0), call.results[0].dtype);
  const double exponent = number_attribute(call.op, "exponent");
  return {exponent == 1 ? x : pow(x, exponent)};
}

Tensors power_of_tensors(const NamedCall& call) {
  const DType dtype = call.results[0].dtype;
  return {pow(cast(call.operand(0), dtype), cast(call.operand(1), dtype))};
}

Tensors power_of_number(const NamedCall& call) {
  return {pow(number_attribute(call.op, "self"), cast(call.operand(0), call.results[0].dtype))};
}

Tensors reciprocal(const NamedCall& call) {
  return {full(call.operand(0), {}, 1, call.results[0].dtype) / call.operand(0)};
}

// Ours are of floating tensors.
Tensors negative(const NamedCall& call) {
  const Tensor x = call.operand(0);
  return {is_floating(x.dtype()) ? neg(x) : x * -1};
}

Tensors absolute(const NamedCall& call) {
  const Tensor x = call.operand(0);
  return {is_floating(x.dtype()) ? abs(x) : maximum(x, x * -1)};
}

Tensors sign_of(const NamedCall& call) {
  return {emit("sign", {call.operand(0)})};
}

Tensors chosen(const NamedCall& call) {
  const DType dtype = call.results[0].dtype;
  return {where(call.operand(0), cast(call.operand(1), dtype), cast(call.operand(2), dtype))};
}

// The value is the third operand, or an attribute.
Tensors filled(const NamedCall& call) {
  const Tensor x = call.operand(0), mask = call.operand(1);
  if (call.operands.size() > 2) return {where(mask, cast(call.operand(2), x.dtype()), x)};
  return {masked_fill(x, mask, number_attribute(call.op, "value"))};
}

Tensors clamped(const NamedCall& call) {
  Tensor x = call.operand(0);
  const auto limit = [&](const char* name) { return full(x, {}, number_attribute(call.op, name), x.dtype()); };
  if (call.op.attributes.contains("min")) x = maximum(x, limit("min"));
  if (call.op.attributes.contains("max")) x = minimum(x, limit("max"));
  return {x};
}

// (start, end) -> the value between them
Tensors between(const NamedCall& call) {
  const double weight = number_attribute(call.op, "weight");
  return {call.operand(0) * (1 - weight) + call.operand(1) * weight};
}

// The weight is a tensor.
Tensors between_by(const NamedCall& call) {
  const Tensor start = call.operand(0), weight = call.operand(2);
  return {start + (call.operand(1) - start) * weight};
}

// x + value * (a combined with b)
template <Tensor (*Combine)(Tensor, TensorOrNumber)>
Tensors added(const NamedCall& call) {
  const DType dtype = call.results[0].dtype;
  const Tensor term = Combine(cast(call.operand(1), dtype), cast(call.operand(2), dtype));
  const double value = number_attribute_or(call.op, "value", 1);
  return {cast(call.operand(0), dtype) + (value == 1 ? term : term * value)};
}

Tensors gelu_of(const NamedCall& call) {
  return {gelu(call.operand(0), attribute_or(call.op, "approximate", std::string("none")))};
}

constexpr RenameRow kElementwiseRows[] = {
    {"aten::add.Tensor", addition},
    {"aten::add.Scalar", sum_or_difference<add>},
    {"aten::sub.Tensor", difference},
    {"aten::sub.Scalar", sum_or_difference<sub>},
    {"aten::rsub.Scalar", reversed_difference},
    {"aten::mul.Tensor", product},
    {"aten::mul.Scalar", product},
    {"aten::div.Tensor", quotient},
    {"aten::div.Scalar", quotient},
    {"aten::pow.Tensor_Scalar", power},
    {"aten::pow.Tensor_Tensor", power_of_tensors},
    {"aten::pow.Scalar", power_of_number},
    {"aten::reciprocal", reciprocal},
    {"aten::maximum", binary<maximum>},
    {"aten::minimum", binary<minimum>},
    {"aten::clamp", clamped},
    {"aten::clamp_min", clamped},
    {"aten::clamp_max", clamped},
    {"aten::lerp.Scalar", between},
    {"aten::lerp.Tensor", between_by},
    {"aten::addcmul", added<mul>},
    {"aten::addcdiv", added<div>},
    {"aten::eq.Tensor", comparison<eq>},
    {"aten::eq.Scalar", comparison<eq>},
    {"aten::ne.Tensor", comparison<ne>},
    {"aten::ne.Scalar", comparison<ne>},
    {"aten::lt.Tensor", comparison<lt>},
    {"aten::lt.Scalar", comparison<lt>},
    {"aten::le.Tensor", comparison<le>},
    {"aten::le.Scalar", comparison<le>},
    {"aten::gt.Tensor", comparison<gt>},
    {"aten::gt.Scalar", comparison<gt>},
    {"aten::ge.Tensor", comparison<ge>},
    {"aten::ge.Scalar", comparison<ge>},
    {"aten::logical_and", binary<logical_and>},
    {"aten::logical_or", binary<logical_or>},
    {"aten::logical_not", unary<logical_not>},
    {"aten::bitwise_and.Tensor", binary<logical_and>},  // of bools; integers stay by name
    {"aten::bitwise_or.Tensor", binary<logical_or>},
    {"aten::bitwise_not", unary<logical_not>},
    {"aten::where.self", chosen},
    {"aten::masked_fill.Scalar", filled},
    {"aten::masked_fill.Tensor", filled},
    {"aten::neg", negative},
    {"aten::abs", absolute},
    {"aten::sign", sign_of},
    {"aten::sgn", sign_of},
    {"aten::exp", unary<exp>},
    {"aten::log", unary<log>},
    {"aten::log1p", unary<log1p>},
    {"aten::sqrt", unary<sqrt>},
    {"aten::rsqrt", unary<rsqrt>},
    {"aten::sin", unary<sin>},
    {"aten::cos", unary<cos>},
    {"aten::tanh", unary<tanh>},
    {"aten::tanh_backward", under_our_name},
    {"aten::sigmoid", unary<sigmoid>},
    {"aten::sigmoid_backward", under_our_name},
    {"aten::erf", unary<erf>},
    {"aten::relu", unary<relu>},
    {"aten::threshold_backward", under_our_name},
    {"aten::silu", unary<silu>},
    {"aten::silu_backward", under_our_name},
    {"aten::gelu", gelu_of},
    {"aten::gelu_backward", under_our_name},
};

}  // namespace

std::span<const RenameRow> elementwise_rows() {
  return kElementwiseRows;
}

}  // namespace penstock
