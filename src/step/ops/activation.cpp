// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

template <std::vector<TensorType> (*Infer)(const Op&, Types)>
std::vector<TensorType> infer_gelu(const Op& op, Types operands) {
  const std::string kind = attribute_or(op, "approximate", std::string("none"));
  if (kind != "none" && kind != "tanh") fail(op, operands, concat("approximate is ", quote(kind)), "it is \"none\" or \"tanh\"");
  return Infer(op, operands);
}

Tensors relu_vjp(const VjpArguments& a) {
  return {emit("threshold_backward", {a.cotangents[0], a.results[0]}, {{"threshold", 0.0}})};
}

Tensors silu_vjp(const VjpArguments& a) {
  return {emit("silu_backward", {a.cotangents[0], a.operands[0]})};
}

Tensors gelu_vjp(const VjpArguments& a) {
  return {emit("gelu_backward", {a.cotangents[0], a.operands[0]}, a.op.attributes)};
}

// A smooth activation counts 12 flops per element, about what the polynomial of one erf, tanh or exp takes.
constexpr OpDefinition smooth(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp = nullptr) {
  return {.name = name, .infer = infer, .vjp = vjp, .flops = flops_by_result<12>, .elementwise = true, .layout = all_dims};
}

}  // namespace

std::span<const OpDefinition> activation_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "relu", .infer = infer_unary, .vjp = relu_vjp, .elementwise = true, .layout = all_dims},
      {.name = "threshold_backward", .infer = infer_pair, .elementwise = true, .layout = all_dims},
      smooth("silu", infer_unary, silu_vjp),
      smooth("silu_backward", infer_pair),
      smooth("gelu", infer_gelu<infer_unary>, gelu_vjp),
      smooth("gelu_backward", infer_gelu<infer_pair>),
  };
  return all;
}

Tensor relu(Tensor x) {
  return emit("relu", {x});
}
Tensor silu(Tensor x) {
  return emit("silu", {x});
}
Tensor gelu(Tensor x, std::string_view approximate) {
  return emit("gelu", {x}, {{"approximate", std::string(approximate)}});
}

}  // namespace penstock
