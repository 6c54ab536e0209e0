#include <cmath>

#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;

void require_attention(const Op& op, Types operands, Types qkv) {
  require(is_floating(qkv[0].dtype), op, operands, "q, k and v must be floating");
  for (const TensorType& type : qkv) {
    require(type.dtype == qkv[0].dtype, op, operands, "q, k and v must have one dtype");
    require(type.shape.size() == 4, op, operands, "needs q, k, v [batch, heads, length, head]");
    for (std::size_t dim : {0, 1, 3})
      require(type.shape[dim] == qkv[0].shape[dim], op, operands, "batch, heads and head must agree in q, k and v");
  }
  require(qkv[1].shape == qkv[2].shape, op, operands, "k and v must have one length");
  attribute<bool>(op, "is_causal");
  number_attribute(op, "scale");
}

TensorType logsumexp_type(const TensorType& q) {
  return {statistic(q.dtype), {q.shape[0], q.shape[1], q.shape[2]}};
}

// (q, k, v) -> (out, logsumexp[batch, heads, length])
std::vector<TensorType> infer_attention(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  require_attention(op, operands, operands);
  return {operands[0], logsumexp_type(operands[0])};
}

// (dout, q, k, v, out, logsumexp) -> (dq, dk, dv)
std::vector<TensorType> infer_attention_backward(const Op& op, Types operands) {
  require_count(op, operands, 6, 6);
  require_attention(op, operands, operands.subspan(1, 3));
  require(operands[0] == operands[1] && operands[4] == operands[1], op, operands, "dout and out must have q's type");
  require(operands[5] == logsumexp_type(operands[1]), op, operands, "logsumexp does not fit to q");
  return {operands[1], operands[2], operands[3]};
}

// (out, logsumexp, other out, other logsumexp) -> (out, logsumexp): of queries that attended to some keys, and to others.
std::vector<TensorType> infer_join(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  require(is_floating(operands[0].dtype) && operands[0].shape.size() == 4, op, operands, "needs floating out[batch, heads, length, head]");
  require(operands[2] == operands[0], op, operands, "both must be of one type");
  for (std::size_t i : {1, 3}) require(operands[i] == logsumexp_type(operands[0]), op, operands, "a logsumexp does not fit to its out");
  return {operands[0], operands[1]};
}

Tensors attention_vjp(const VjpArguments& a) {
  if (a.cotangents[1]) throw Error(a.op.name + ": its logsumexp has no gradient");
  const Tensor operands[] = {a.cotangents[0], a.operands[0], a.operands[1], a.operands[2], a.results[0], a.results[1]};
  return emit_all("scaled_dot_product_attention_backward", operands, a.op.attributes);
}

// Flops of one product of queries with keys; a causal mask leaves half of it.
double product_flops(const Op& op, const TensorType& q, const TensorType& k) {
  const double whole = 2 * static_cast<double>(q.elements()) * static_cast<double>(k.shape[2]);
  return attribute<bool>(op, "is_causal") ? whole / 2 : whole;
}

double flops_attention(const Op& op, Types operands, Types) {
  return 2 * product_flops(op, operands[0], operands[1]);
}

// The backward computes the scores again, then the gradients of both products.
double flops_attention_backward(const Op& op, Types operands, Types) {
  return 5 * product_flops(op, operands[1], operands[2]);
}

// Two weights of each row, and three operations on each element.
double flops_join(const Op&, Types operands, Types) {
  return 3 * static_cast<double>(operands[0].elements()) + 40 * static_cast<double>(operands[1].elements());
}

}  // namespace

std::span<const OpDefinition> attention_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "attention_join", .infer = infer_join, .flops = flops_join, .layout = by<named<"bhqD,bhq,bhqD,bhq->bhqD,bhq">>},
      {.name = "scaled_dot_product_attention",
       .infer = infer_attention,
       .vjp = attention_vjp,
       .flops = flops_attention,
       .layout = by<named<"bhQD,bhKD->bhQD,bhQ">>},
      {.name = "scaled_dot_product_attention_backward",
       .infer = infer_attention_backward,
       .flops = flops_attention_backward,
       .layout = by<named<"bhQD,bhQD,bhKD,bhKD,bhQD,bhQ->bhQD,bhKD">>},
  };
  return all;
}

Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, bool is_causal, std::optional<double> scale) {
  if (!scale) scale = q.rank() > 0 ? 1 / std::sqrt(static_cast<double>(q.size(-1))) : 1;
  return emit("scaled_dot_product_attention", {q, k, v}, {{"is_causal", is_causal}, {"scale", *scale}});
}

}  // namespace penstock
