#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;

void require_approximation(const Op& op, Types operands) {
  const std::string kind = attribute_or(op, "approximate", std::string("none"));
  if (kind != "none" && kind != "tanh") fail(op, operands, concat("approximate is ", quote(kind)), "it is \"none\" or \"tanh\"");
}

std::vector<TensorType> infer_gelu(const Op& op, Types operands) {
  require_approximation(op, operands);
  return infer_unary(op, operands);
}

std::vector<TensorType> infer_gelu_backward(const Op& op, Types operands) {
  require_approximation(op, operands);
  return infer_pair(op, operands);
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

// Counts 12 flops per element, about what the polynomial of one erf, tanh or exp takes.
double flops_transcendental(const Op&, Types, Types results) {
  return 12 * static_cast<double>(results[0].elements());
}

}  // namespace

std::span<const OpDefinition> activation_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "relu", .infer = infer_unary, .vjp = relu_vjp, .elementwise = true, .layout = all_dims},
      {.name = "threshold_backward", .infer = infer_pair, .elementwise = true, .layout = all_dims},
      {.name = "silu", .infer = infer_unary, .vjp = silu_vjp, .flops = flops_transcendental, .elementwise = true, .layout = all_dims},
      {.name = "silu_backward", .infer = infer_pair, .flops = flops_transcendental, .elementwise = true, .layout = all_dims},
      {.name = "gelu", .infer = infer_gelu, .vjp = gelu_vjp, .flops = flops_transcendental, .elementwise = true, .layout = all_dims},
      {.name = "gelu_backward", .infer = infer_gelu_backward, .flops = flops_transcendental, .elementwise = true, .layout = all_dims},
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
