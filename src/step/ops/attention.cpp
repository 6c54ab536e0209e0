// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

void require_qkv(const Op& op, Types operands, Types qkv) {
  require(is_floating(qkv[0].dtype), op, operands, "q, k and v must be floating");
  for (const TensorType& type : qkv) {
    require(type.dtype == qkv[0].dtype, op, operands, "q, k and v must have one dtype");
    require(type.shape.size() == 4, op, operands, "needs q, k, v [batch, heads, length, head]");
    for (std::size_t dim : {0, 1, 3})
      require(type.shape[dim] == qkv[0].shape[dim], op, operands, "batch, heads and head must agree in q, k and v");
  }
  require(qkv[1].shape == qkv[2].shape, op, operands, "k and v must have one length");
  number_attribute(op, "scale");
}

void require_attention(const Op& op, Types operands, Types qkv) {
  require_qkv(op, operands, qkv);
  attribute<bool>(op, "is_causal");
}

TensorType logsumexp_type(const TensorType& q) {
  return {statistic(q.dtype), {q.shape[0], q.shape[1], q.shape[2]}};
}

// Checks what a backward takes (dout, q, k, v, out, logsumexp, ...).
void require_results(const Op& op, Types operands) {
  require(operands[0] == operands[1] && operands[4] == operands[1], op, operands, "dout and out must have q's type");
  require(operands[5] == logsumexp_type(operands[1]), op, operands, "logsumexp does not fit to q");
}

// Checks attention in ranges: `rest` is the ranges and, where there is one, the bias.
void require_ranges(const Op& op, Types operands, Types qkv, Types rest) {
  require_qkv(op, operands, qkv);
  const std::int64_t reach = attribute<std::int64_t>(op, "reach");
  require(reach >= 1, op, operands, "reach must be at least 1");
  require(rest[0] == TensorType{DType::i64, {qkv[0].shape[0], qkv[0].shape[2], 2}}, op, operands, "needs ranges i64[batch, queries, 2]");
  if (rest.size() > 1)
    require(rest[1] == TensorType{qkv[0].dtype, {qkv[0].shape[1], 2 * reach - 1}}, op, operands,
            "needs a bias[heads, 2*reach - 1] of q's dtype");
}

// (q, k, v, ranges, bias?) -> (out, logsumexp[batch, heads, length])
std::vector<TensorType> infer_in_ranges(const Op& op, Types operands) {
  require_count(op, operands, 4, 5);
  require_ranges(op, operands, operands.first(3), operands.subspan(3));
  return {operands[0], logsumexp_type(operands[0])};
}

// (dout, q, k, v, out, logsumexp, ranges, bias?) -> (dq, dk, dv, dbias?)
std::vector<TensorType> infer_in_ranges_backward(const Op& op, Types operands) {
  require_count(op, operands, 7, 8);
  require_ranges(op, operands, operands.subspan(1, 3), operands.subspan(6));
  require_results(op, operands);
  std::vector<TensorType> out = {operands[1], operands[2], operands[3]};
  if (operands.size() > 7) out.push_back(operands[7]);
  return out;
}

// Checks what is added to the scores, where `rest` has it: a tensor of q's dtype that broadcasts to [batch, heads, queries, keys].
void require_bias(const Op& op, Types operands, Types qkv, Types rest) {
  if (rest.empty()) return;
  const Shape scores = {qkv[0].shape[0], qkv[0].shape[1], qkv[0].shape[2], qkv[1].shape[2]};
  bool fits = rest[0].dtype == qkv[0].dtype && rest[0].shape.size() == 4;
  for (std::size_t dim = 0; fits && dim < 4; ++dim) fits = rest[0].shape[dim] == 1 || rest[0].shape[dim] == scores[dim];
  require(fits, op, operands, "the bias must be of q's dtype and broadcast to [batch, heads, queries, keys]");
}

// (q, k, v, bias?) -> (out, logsumexp[batch, heads, length])
std::vector<TensorType> infer_attention(const Op& op, Types operands) {
  require_count(op, operands, 3, 4);
  require_attention(op, operands, operands.first(3));
  require_bias(op, operands, operands.first(3), operands.subspan(3));
  return {operands[0], logsumexp_type(operands[0])};
}

// (dout, q, k, v, out, logsumexp, bias?) -> (dq, dk, dv)
std::vector<TensorType> infer_attention_backward(const Op& op, Types operands) {
  require_count(op, operands, 6, 7);
  require_attention(op, operands, operands.subspan(1, 3));
  require_results(op, operands);
  require_bias(op, operands, operands.subspan(1, 3), operands.subspan(6));
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

// The gradient of the bias: that of the scores, which are computed again as a whole.
Tensor bias_gradient(const VjpArguments& a) {
  const Tensor q = a.operands[0], k = a.operands[1], v = a.operands[2], bias = a.operands[3], dout = a.cotangents[0];
  const auto as_q = [&](Tensor x) { return to(unsqueeze(x, -1), q.dtype()); };
  const Tensor scores = matmul(q, transpose(k, -2, -1)) * number_attribute(a.op, "scale") + bias;
  Tensor weights = exp(scores - as_q(a.results[1]));
  if (attribute<bool>(a.op, "is_causal")) weights = tril(weights);
  const Tensor mean = sum(dout * a.results[0], {-1}, true);
  return sum_to(weights * (matmul(dout, transpose(v, -2, -1)) - mean), bias.shape());
}

Tensors attention_vjp(const VjpArguments& a) {
  if (a.cotangents[1]) throw Error(a.op.name + ": its logsumexp has no gradient");
  Tensors operands = {a.cotangents[0], a.operands[0], a.operands[1], a.operands[2], a.results[0], a.results[1]};
  if (a.operands.size() > 3) operands.push_back(a.operands[3]);
  Tensors gradients = emit_all("scaled_dot_product_attention_backward", operands, a.op.attributes);
  gradients.resize(a.operands.size());
  if (a.operands.size() > 3 && a.wanted[3]) gradients[3] = bias_gradient(a);
  return gradients;
}

Tensors in_ranges_vjp(const VjpArguments& a) {
  if (a.cotangents[1]) throw Error(a.op.name + ": its logsumexp has no gradient");
  std::vector<Tensor> operands = {a.cotangents[0], a.operands[0], a.operands[1], a.operands[2], a.results[0], a.results[1]};
  operands.insert(operands.end(), a.operands.begin() + 3, a.operands.end());
  Tensors gradients = emit_all("attention_in_ranges_backward", operands, a.op.attributes);
  gradients.insert(gradients.begin() + 3, Tensor());  // of the ranges
  return gradients;
}

// Flops of one product of queries with keys; a causal mask leaves half of it.
double product_flops(const Op& op, const TensorType& q, const TensorType& k) {
  const double whole = 2 * static_cast<double>(q.elements()) * static_cast<double>(k.shape[2]);
  return attribute_or(op, "is_causal", false) ? whole / 2 : whole;
}

double flops_attention(const Op& op, Types operands, Types) {
  return 2 * product_flops(op, operands[0], operands[1]);
}

// The backward computes the scores again, then the gradients of both products.
double flops_attention_backward(const Op& op, Types operands, Types) {
  return 5 * product_flops(op, operands[1], operands[2]);
}

// Which keys a query attends to is data: each counts as if it attended to as many as it may, or to those of them that are not behind it.
double product_in_ranges(const Op& op, const TensorType& q, const TensorType& k) {
  const std::int64_t most = std::min(attribute<std::int64_t>(op, "reach"), k.shape[2]);
  const double all = 2 * static_cast<double>(q.elements()) * static_cast<double>(most);
  return attribute_or(op, "is_causal", false) ? all / 2 : all;
}
double flops_in_ranges(const Op& op, Types operands, Types) {
  return 2 * product_in_ranges(op, operands[0], operands[1]);
}
double flops_in_ranges_backward(const Op& op, Types operands, Types) {
  return 5 * product_in_ranges(op, operands[1], operands[2]);
}

// Two weights of each row, and three operations on each element.
double flops_join(const Op&, Types operands, Types) {
  return 3 * static_cast<double>(operands[0].elements()) + 40 * static_cast<double>(operands[1].elements());
}

double scale_of(Tensor q, std::optional<double> scale) {
  return scale ? *scale : q.rank() > 0 ? 1 / std::sqrt(static_cast<double>(q.size(-1))) : 1;
}

// k or v with each head as often as there are heads of q for it, one behind the other.
Tensor heads_for(Tensor q, Tensor x) {
  if (q.rank() != 4 || x.rank() != 4 || q.size(1) == x.size(1)) return x;
  if (x.size(1) == 0 || q.size(1) % x.size(1) != 0)
    throw Error(concat("scaled_dot_product_attention: ", q.size(1), " heads of q do not divide among ", x.size(1), " of k and v"));
  const Shape shape = x.shape();
  return reshape(expand(unsqueeze(x, 2), {shape[0], shape[1], q.size(1) / shape[1], shape[2], shape[3]}),
                 {shape[0], q.size(1), shape[2], shape[3]});
}

bool is_mask(Tensor mask) {
  return mask && mask.dtype() == DType::boolean;
}

// The mask with four dims, and with zero and minus infinity for true and false.
Tensor bias_of(Tensor q, Tensor mask) {
  while (mask.rank() < 4) mask = unsqueeze(mask, 0);
  if (!is_mask(mask)) return mask;
  const auto number = [&](double value) { return full(q, {}, value, q.dtype()); };
  return where(mask, number(0), number(-std::numeric_limits<double>::infinity()));
}

// Attention by whole scores, whose weights are dropped. A query that attends to nothing gets nothing.
Tensor attention_with_dropout(Tensor q, Tensor k, Tensor v, const AttentionOptions& options) {
  Tensor scores = matmul(q, transpose(k, -2, -1)) * scale_of(q, options.scale);
  if (options.attn_mask && !is_mask(options.attn_mask)) scores = scores + options.attn_mask;
  Tensor seen = is_mask(options.attn_mask) ? options.attn_mask : Tensor();
  if (options.is_causal) {
    const Tensor places = arange(q, k.size(2), DType::i64), earlier = le(places, unsqueeze(arange(q, q.size(2), DType::i64), 1));
    seen = seen ? logical_and(seen, earlier) : earlier;
  }
  if (seen) scores = masked_fill(scores, logical_not(seen), -1e30);
  Tensor weights = softmax(scores, -1);
  if (seen) weights = masked_fill(weights, logical_not(seen), 0);
  return matmul(dropout(weights, options.dropout_p, options.key, options.rows), v);
}

}  // namespace

std::span<const OpDefinition> attention_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "attention_in_ranges",
       .infer = infer_in_ranges,
       .vjp = in_ranges_vjp,
       .flops = flops_in_ranges,
       .layout = by<named<"bhQD,bhKD,bhKD,bQE,hR->bhQD,bhQ">>},
      {.name = "attention_in_ranges_backward",
       .infer = infer_in_ranges_backward,
       .flops = flops_in_ranges_backward,
       .layout = by<named<"bhQD,bhQD,bhKD,bhKD,bhQD,bhQ,bQE,hR->bhQD,bhKD,bhKD,hR">>},
      {.name = "attention_join", .infer = infer_join, .flops = flops_join, .layout = by<named<"bhqD,bhq,bhqD,bhq->bhqD,bhq">>},
      {.name = "scaled_dot_product_attention",
       .infer = infer_attention,
       .vjp = attention_vjp,
       .flops = flops_attention,
       .layout = by<named<"bhQD,bhKD,bhKD,bhQK->bhQD,bhQ">>},
      {.name = "scaled_dot_product_attention_backward",
       .infer = infer_attention_backward,
       .flops = flops_attention_backward,
       .layout = by<named<"bhQD,bhQD,bhKD,bhKD,bhQD,bhQ,bhQK->bhQD,bhKD">>},
  };
  return all;
}

Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, bool is_causal, std::optional<double> scale) {
  return emit("scaled_dot_product_attention", {q, k, v}, {{"is_causal", is_causal}, {"scale", scale_of(q, scale)}});
}

Tensor scaled_dot_product_attention(Tensor q, Tensor k, Tensor v, const AttentionOptions& options) {
  if (options.enable_gqa) k = heads_for(q, k), v = heads_for(q, v);
  if (options.dropout_p > 0) return attention_with_dropout(q, k, v, options);
  if (!options.attn_mask) return scaled_dot_product_attention(q, k, v, options.is_causal, options.scale);
  const Attributes attributes = {{"is_causal", options.is_causal}, {"scale", scale_of(q, options.scale)}};
  return emit("scaled_dot_product_attention", {q, k, v, bias_of(q, options.attn_mask)}, attributes);
}

Tensor attention_in_ranges(Tensor q, Tensor k, Tensor v, Tensor ranges, const RangesOptions& options) {
  std::vector<Tensor> operands = {q, k, v, ranges};
  if (options.bias) operands.push_back(options.bias);
  Attributes attributes = {{"reach", options.reach}, {"scale", scale_of(q, options.scale)}};
  if (options.is_causal) attributes["is_causal"] = true;
  return emit_all("attention_in_ranges", operands, std::move(attributes))[0];
}

}  // namespace penstock
