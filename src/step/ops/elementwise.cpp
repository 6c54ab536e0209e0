// SPDX-License-Identifier: Apache-2.0
#include <numbers>

#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

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
template <Tensor (*Strict)(Tensor, TensorOrNumber), Tensor (*Weak)(Tensor, TensorOrNumber)>
Tensors extremum_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  const auto share = [&](Tensor x, Tensor other) {
    const Tensor more = to(Strict(x, other), dy.dtype());
    return dy * ((more + to(Weak(x, other), dy.dtype())) * 0.5);
  };
  return pair(a, [&] { return share(a.operands[0], a.operands[1]); }, [&] { return share(a.operands[1], a.operands[0]); });
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

Tensors erf_vjp(const VjpArguments& a) {
  const Tensor slope = exp(neg(a.operands[0] * a.operands[0])) * (2 * std::numbers::inv_sqrtpi);
  return {a.cotangents[0] * slope};
}

// --- rows of the table

constexpr OpDefinition arithmetic(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp,
                                  Linearity linear = Linearity::none) {
  return {.name = name, .infer = infer, .vjp = vjp, .elementwise = true, .layout = all_dims, .linear = linear};
}

constexpr OpDefinition comparison(std::string_view name) {
  return {.name = name, .infer = infer_comparison, .layout = all_dims};
}

constexpr OpDefinition logical(std::string_view name) {
  return {.name = name, .infer = infer_logical, .elementwise = true, .layout = all_dims};
}

// A function of one floating tensor.
constexpr OpDefinition function_of_one(std::string_view name, decltype(OpDefinition::vjp) vjp = nullptr) {
  return arithmetic(name, infer_unary, vjp);
}

// The gradient of a function, of the cotangent and what the function gave.
constexpr OpDefinition gradient_of_one(std::string_view name) {
  return arithmetic(name, infer_pair, nullptr);
}

constexpr OpDefinition kElementwiseOps[] = {
    arithmetic("add", infer_arithmetic, add_vjp, Linearity::of_tensors),
    arithmetic("sub", infer_arithmetic, sub_vjp, Linearity::of_tensors),
    arithmetic("mul", infer_arithmetic, mul_vjp, Linearity::of_number),
    arithmetic("div", infer_division, div_vjp, Linearity::of_number),
    arithmetic("pow", infer_pow, pow_vjp),
    arithmetic("pow.Tensor_Tensor", infer_pow_tensor, pow_tensor_vjp),
    arithmetic("maximum", infer_extremum, extremum_vjp<gt, ge>),
    arithmetic("minimum", infer_extremum, extremum_vjp<lt, le>),
    comparison("eq"),
    comparison("ne"),
    comparison("lt"),
    comparison("le"),
    comparison("gt"),
    comparison("ge"),
    logical("logical_and"),
    logical("logical_or"),
    logical("logical_not"),
    arithmetic("where", infer_where, where_vjp),
    arithmetic(
        "neg", infer_unary, [](const VjpArguments& a) -> Tensors { return {neg(a.cotangents[0])}; }, Linearity::all),
    function_of_one("abs", [](const VjpArguments& a) -> Tensors { return {a.cotangents[0] * emit("sign", {a.operands[0]})}; }),
    function_of_one("sign"),
    function_of_one("exp", [](const VjpArguments& a) -> Tensors { return {a.cotangents[0] * a.results[0]}; }),
    function_of_one("log", [](const VjpArguments& a) -> Tensors { return {a.cotangents[0] / a.operands[0]}; }),
    function_of_one("log1p", [](const VjpArguments& a) -> Tensors { return {a.cotangents[0] / (a.operands[0] + 1)}; }),
    function_of_one("sqrt", [](const VjpArguments& a) -> Tensors { return {a.cotangents[0] / (a.results[0] * 2)}; }),
    function_of_one("rsqrt", [](const VjpArguments& a) -> Tensors { return {a.cotangents[0] * (pow(a.results[0], 3) * -0.5)}; }),
    function_of_one("sin", [](const VjpArguments& a) -> Tensors { return {a.cotangents[0] * cos(a.operands[0])}; }),
    function_of_one("cos", [](const VjpArguments& a) -> Tensors { return {neg(a.cotangents[0] * sin(a.operands[0]))}; }),
    function_of_one("tanh", [](const VjpArguments& a) -> Tensors { return {emit("tanh_backward", {a.cotangents[0], a.results[0]})}; }),
    gradient_of_one("tanh_backward"),
    function_of_one("sigmoid",
                    [](const VjpArguments& a) -> Tensors { return {emit("sigmoid_backward", {a.cotangents[0], a.results[0]})}; }),
    gradient_of_one("sigmoid_backward"),
    function_of_one("erf", erf_vjp),
    {.name = "isfinite", .infer = infer_isfinite, .layout = all_dims},
};

}  // namespace

std::span<const OpDefinition> elementwise_ops() {
  return kElementwiseOps;
}

namespace {

Tensor emit_binary(std::string_view name, Tensor a, const TensorOrNumber& b) {
  return b.number ? emit(name, {a}, {{"other", *b.number}}) : emit(name, {a, b.tensor});
}

}  // namespace

Tensor add(Tensor a, TensorOrNumber b) {
  return emit_binary("add", a, b);
}
Tensor sub(Tensor a, TensorOrNumber b) {
  return emit_binary("sub", a, b);
}
Tensor mul(Tensor a, TensorOrNumber b) {
  return emit_binary("mul", a, b);
}
Tensor div(Tensor a, TensorOrNumber b) {
  return emit_binary("div", a, b);
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
Tensor eq(Tensor a, TensorOrNumber b) {
  return emit_binary("eq", a, b);
}
Tensor ne(Tensor a, TensorOrNumber b) {
  return emit_binary("ne", a, b);
}
Tensor lt(Tensor a, TensorOrNumber b) {
  return emit_binary("lt", a, b);
}
Tensor le(Tensor a, TensorOrNumber b) {
  return emit_binary("le", a, b);
}
Tensor gt(Tensor a, TensorOrNumber b) {
  return emit_binary("gt", a, b);
}
Tensor ge(Tensor a, TensorOrNumber b) {
  return emit_binary("ge", a, b);
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
