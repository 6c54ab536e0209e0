#include <numbers>

#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;

// Infers an op of two operands that broadcast, or of one operand and the number "other".
TensorType infer_binary(const Op& op, Types operands) {
  require_count(op, operands, 1, 2);
  if (operands.size() == 1) number_attribute(op, "other");
  require_equal_dtypes(op, operands);
  return {operands[0].dtype, broadcast(op, operands)};
}

std::vector<TensorType> infer_arithmetic(const Op& op, Types operands) {
  const TensorType out = infer_binary(op, operands);
  require(out.dtype != DType::boolean, op, operands, "operands must be numbers, not bool");
  return {out};
}

std::vector<TensorType> infer_division(const Op& op, Types operands) {
  const TensorType out = infer_binary(op, operands);
  require_floating(op, operands);
  return {out};
}

// (x, exponent) -> y
std::vector<TensorType> infer_pow_tensor(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  return infer_division(op, operands);
}

std::vector<TensorType> infer_extremum(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  return infer_arithmetic(op, operands);
}

std::vector<TensorType> infer_comparison(const Op& op, Types operands) {
  return {{DType::boolean, infer_binary(op, operands).shape}};
}

std::vector<TensorType> infer_logical(const Op& op, Types operands) {
  const std::size_t count = op.name == "logical_not" ? 1 : 2;
  require_count(op, operands, count, count);
  for (const TensorType& type : operands) require(type.dtype == DType::boolean, op, operands, "operands must be bool");
  return {{DType::boolean, broadcast(op, operands)}};
}

std::vector<TensorType> infer_where(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  require(operands[0].dtype == DType::boolean, op, operands, "the condition must be bool");
  require_equal_dtypes(op, operands, 1);
  return {{operands[1].dtype, broadcast(op, operands)}};
}

std::vector<TensorType> infer_pow(const Op& op, Types operands) {
  number_attribute(op, "exponent");
  return infer_unary(op, operands);
}

std::vector<TensorType> infer_isfinite(const Op& op, Types operands) {
  return {{DType::boolean, infer_unary(op, operands)[0].shape}};
}

// The wanted cotangents of two operands, each summed to its operand's shape.
template <class First, class Second>
Tensors pair(const VjpArguments& a, First first, Second second) {
  Tensors out(2);
  if (a.wanted[0]) out[0] = sum_to(first(), a.operands[0].shape());
  if (a.wanted[1]) out[1] = sum_to(second(), a.operands[1].shape());
  return out;
}

bool with_number(const VjpArguments& a) {
  return a.operands.size() == 1;
}

Tensors add_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  if (with_number(a)) return {dy};
  return pair(a, [&] { return dy; }, [&] { return dy; });
}

Tensors sub_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  if (with_number(a)) return {dy};
  return pair(a, [&] { return dy; }, [&] { return neg(dy); });
}

Tensors mul_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  if (with_number(a)) return {dy * number_attribute(a.op, "other")};
  return pair(a, [&] { return dy * a.operands[1]; }, [&] { return dy * a.operands[0]; });
}

Tensors div_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  if (with_number(a)) return {dy / number_attribute(a.op, "other")};
  const Tensor quotient = dy / a.operands[1];
  return pair(a, [&] { return quotient; }, [&] { return neg(quotient * a.results[0]); });
}

// The share of the cotangent that each operand gets: all where it is the extremum, half where both are equal (as ATen).
Tensors extremum_vjp(const VjpArguments& a, Tensor (*strict)(Tensor, Tensor), Tensor (*weak)(Tensor, Tensor)) {
  const Tensor dy = a.cotangents[0];
  const auto share = [&](Tensor x, Tensor other) {
    const Tensor more = to(strict(x, other), dy.dtype());
    return dy * ((more + to(weak(x, other), dy.dtype())) * 0.5);
  };
  return pair(a, [&] { return share(a.operands[0], a.operands[1]); }, [&] { return share(a.operands[1], a.operands[0]); });
}

Tensors maximum_vjp(const VjpArguments& a) {
  return extremum_vjp(a, gt, ge);
}

Tensors minimum_vjp(const VjpArguments& a) {
  return extremum_vjp(a, lt, le);
}

Tensors where_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0], condition = a.operands[0];
  const Tensor zero = full(dy, {}, 0, dy.dtype());
  Tensors out(3);
  if (a.wanted[1]) out[1] = sum_to(where(condition, dy, zero), a.operands[1].shape());
  if (a.wanted[2]) out[2] = sum_to(where(condition, zero, dy), a.operands[2].shape());
  return out;
}

Tensors pow_vjp(const VjpArguments& a) {
  const double exponent = number_attribute(a.op, "exponent");
  if (exponent == 0) return {{}};
  const Tensor power = exponent == 2 ? a.operands[0] : pow(a.operands[0], exponent - 1);
  return {a.cotangents[0] * (power * exponent)};
}

// (x, exponent): a base of zero has no logarithm, and its powers from 0 on do not depend on the exponent (as ATen).
Tensors pow_tensor_vjp(const VjpArguments& a) {
  const Tensor x = a.operands[0], exponent = a.operands[1], dy = a.cotangents[0];
  const Tensor zero = full(dy, {}, 0, dy.dtype());
  return pair(
      a, [&] { return where(eq(exponent, 0), zero, dy * (exponent * pow(x, exponent - 1))); },
      [&] { return where(logical_and(eq(x, 0), ge(exponent, 0)), zero, dy * (a.results[0] * log(x))); });
}

Tensors log1p_vjp(const VjpArguments& a) {
  return {a.cotangents[0] / (a.operands[0] + 1)};
}

Tensors neg_vjp(const VjpArguments& a) {
  return {neg(a.cotangents[0])};
}

Tensors abs_vjp(const VjpArguments& a) {
  return {a.cotangents[0] * emit("sign", {a.operands[0]})};
}

Tensors exp_vjp(const VjpArguments& a) {
  return {a.cotangents[0] * a.results[0]};
}

Tensors log_vjp(const VjpArguments& a) {
  return {a.cotangents[0] / a.operands[0]};
}

Tensors sqrt_vjp(const VjpArguments& a) {
  return {a.cotangents[0] / (a.results[0] * 2)};
}

Tensors rsqrt_vjp(const VjpArguments& a) {
  return {a.cotangents[0] * (pow(a.results[0], 3) * -0.5)};
}

Tensors sin_vjp(const VjpArguments& a) {
  return {a.cotangents[0] * cos(a.operands[0])};
}

Tensors cos_vjp(const VjpArguments& a) {
  return {neg(a.cotangents[0] * sin(a.operands[0]))};
}

Tensors erf_vjp(const VjpArguments& a) {
  const Tensor slope = exp(neg(a.operands[0] * a.operands[0])) * (2 * std::numbers::inv_sqrtpi);
  return {a.cotangents[0] * slope};
}

Tensors tanh_vjp(const VjpArguments& a) {
  return {emit("tanh_backward", {a.cotangents[0], a.results[0]})};
}

Tensors sigmoid_vjp(const VjpArguments& a) {
  return {emit("sigmoid_backward", {a.cotangents[0], a.results[0]})};
}

}  // namespace

std::span<const OpDefinition> elementwise_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "add", .infer = infer_arithmetic, .vjp = add_vjp, .elementwise = true, .layout = all_dims, .linear = Linearity::of_tensors},
      {.name = "sub", .infer = infer_arithmetic, .vjp = sub_vjp, .elementwise = true, .layout = all_dims, .linear = Linearity::of_tensors},
      {.name = "mul", .infer = infer_arithmetic, .vjp = mul_vjp, .elementwise = true, .layout = all_dims, .linear = Linearity::of_number},
      {.name = "div", .infer = infer_division, .vjp = div_vjp, .elementwise = true, .layout = all_dims, .linear = Linearity::of_number},
      {.name = "pow", .infer = infer_pow, .vjp = pow_vjp, .elementwise = true, .layout = all_dims},
      {.name = "pow.Tensor_Tensor", .infer = infer_pow_tensor, .vjp = pow_tensor_vjp, .elementwise = true, .layout = all_dims},
      {.name = "maximum", .infer = infer_extremum, .vjp = maximum_vjp, .elementwise = true, .layout = all_dims},
      {.name = "minimum", .infer = infer_extremum, .vjp = minimum_vjp, .elementwise = true, .layout = all_dims},
      {.name = "eq", .infer = infer_comparison, .layout = all_dims},
      {.name = "ne", .infer = infer_comparison, .layout = all_dims},
      {.name = "lt", .infer = infer_comparison, .layout = all_dims},
      {.name = "le", .infer = infer_comparison, .layout = all_dims},
      {.name = "gt", .infer = infer_comparison, .layout = all_dims},
      {.name = "ge", .infer = infer_comparison, .layout = all_dims},
      {.name = "logical_and", .infer = infer_logical, .elementwise = true, .layout = all_dims},
      {.name = "logical_or", .infer = infer_logical, .elementwise = true, .layout = all_dims},
      {.name = "logical_not", .infer = infer_logical, .elementwise = true, .layout = all_dims},
      {.name = "where", .infer = infer_where, .vjp = where_vjp, .elementwise = true, .layout = all_dims},
      {.name = "neg", .infer = infer_unary, .vjp = neg_vjp, .elementwise = true, .layout = all_dims, .linear = Linearity::all},
      {.name = "abs", .infer = infer_unary, .vjp = abs_vjp, .elementwise = true, .layout = all_dims},
      {.name = "sign", .infer = infer_unary, .elementwise = true, .layout = all_dims},
      {.name = "exp", .infer = infer_unary, .vjp = exp_vjp, .elementwise = true, .layout = all_dims},
      {.name = "log", .infer = infer_unary, .vjp = log_vjp, .elementwise = true, .layout = all_dims},
      {.name = "log1p", .infer = infer_unary, .vjp = log1p_vjp, .elementwise = true, .layout = all_dims},
      {.name = "sqrt", .infer = infer_unary, .vjp = sqrt_vjp, .elementwise = true, .layout = all_dims},
      {.name = "rsqrt", .infer = infer_unary, .vjp = rsqrt_vjp, .elementwise = true, .layout = all_dims},
      {.name = "sin", .infer = infer_unary, .vjp = sin_vjp, .elementwise = true, .layout = all_dims},
      {.name = "cos", .infer = infer_unary, .vjp = cos_vjp, .elementwise = true, .layout = all_dims},
      {.name = "tanh", .infer = infer_unary, .vjp = tanh_vjp, .elementwise = true, .layout = all_dims},
      {.name = "tanh_backward", .infer = infer_pair, .elementwise = true, .layout = all_dims},
      {.name = "sigmoid", .infer = infer_unary, .vjp = sigmoid_vjp, .elementwise = true, .layout = all_dims},
      {.name = "sigmoid_backward", .infer = infer_pair, .elementwise = true, .layout = all_dims},
      {.name = "erf", .infer = infer_unary, .vjp = erf_vjp, .elementwise = true, .layout = all_dims},
      {.name = "isfinite", .infer = infer_isfinite, .layout = all_dims},
  };
  return all;
}

Tensor add(Tensor a, Tensor b) {
  return emit("add", {a, b});
}
Tensor add(Tensor a, double b) {
  return emit("add", {a}, {{"other", b}});
}
Tensor sub(Tensor a, Tensor b) {
  return emit("sub", {a, b});
}
Tensor sub(Tensor a, double b) {
  return emit("sub", {a}, {{"other", b}});
}
Tensor mul(Tensor a, Tensor b) {
  return emit("mul", {a, b});
}
Tensor mul(Tensor a, double b) {
  return emit("mul", {a}, {{"other", b}});
}
Tensor div(Tensor a, Tensor b) {
  return emit("div", {a, b});
}
Tensor div(Tensor a, double b) {
  return emit("div", {a}, {{"other", b}});
}
Tensor pow(Tensor a, double exponent) {
  return emit("pow", {a}, {{"exponent", exponent}});
}
Tensor pow(Tensor a, Tensor exponent) {
  return emit("pow.Tensor_Tensor", {a, exponent});
}
Tensor maximum(Tensor a, Tensor b) {
  return emit("maximum", {a, b});
}
Tensor minimum(Tensor a, Tensor b) {
  return emit("minimum", {a, b});
}
Tensor eq(Tensor a, Tensor b) {
  return emit("eq", {a, b});
}
Tensor eq(Tensor a, double b) {
  return emit("eq", {a}, {{"other", b}});
}
Tensor ne(Tensor a, Tensor b) {
  return emit("ne", {a, b});
}
Tensor ne(Tensor a, double b) {
  return emit("ne", {a}, {{"other", b}});
}
Tensor lt(Tensor a, Tensor b) {
  return emit("lt", {a, b});
}
Tensor lt(Tensor a, double b) {
  return emit("lt", {a}, {{"other", b}});
}
Tensor le(Tensor a, Tensor b) {
  return emit("le", {a, b});
}
Tensor le(Tensor a, double b) {
  return emit("le", {a}, {{"other", b}});
}
Tensor gt(Tensor a, Tensor b) {
  return emit("gt", {a, b});
}
Tensor gt(Tensor a, double b) {
  return emit("gt", {a}, {{"other", b}});
}
Tensor ge(Tensor a, Tensor b) {
  return emit("ge", {a, b});
}
Tensor ge(Tensor a, double b) {
  return emit("ge", {a}, {{"other", b}});
}
Tensor logical_and(Tensor a, Tensor b) {
  return emit("logical_and", {a, b});
}
Tensor logical_or(Tensor a, Tensor b) {
  return emit("logical_or", {a, b});
}
Tensor logical_not(Tensor a) {
  return emit("logical_not", {a});
}
Tensor where(Tensor condition, Tensor a, Tensor b) {
  return emit("where", {condition, a, b});
}
Tensor neg(Tensor x) {
  return emit("neg", {x});
}
Tensor abs(Tensor x) {
  return emit("abs", {x});
}
Tensor exp(Tensor x) {
  return emit("exp", {x});
}
Tensor log(Tensor x) {
  return emit("log", {x});
}
Tensor log1p(Tensor x) {
  return emit("log1p", {x});
}
Tensor sqrt(Tensor x) {
  return emit("sqrt", {x});
}
Tensor rsqrt(Tensor x) {
  return emit("rsqrt", {x});
}
Tensor sin(Tensor x) {
  return emit("sin", {x});
}
Tensor cos(Tensor x) {
  return emit("cos", {x});
}
Tensor tanh(Tensor x) {
  return emit("tanh", {x});
}
Tensor sigmoid(Tensor x) {
  return emit("sigmoid", {x});
}
Tensor erf(Tensor x) {
  return emit("erf", {x});
}
Tensor isfinite(Tensor x) {
  return emit("isfinite", {x});
}

}  // namespace penstock
