#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

// The shape for q [batch, heads, queries, head] and k [batch, heads, keys, head].
AttentionShape shape_of(const Op& op, const T& q, const T& k) {
  return {q.size(0),
          q.size(1),
          q.size(2),
          k.size(2),
          q.size(3),
          attribute<bool>(op, "is_causal"),
          static_cast<float>(number_attribute(op, "scale"))};
}

template <class F>
HeadsView<F> heads(const T& x) {
  return {mutable_floats(x), {x.stride(0), x.stride(1), x.stride(2)}};
}

bool is_for_ours(std::initializer_list<T> tensors, const AttentionShape& shape) {
  if (shape.keys > kMaxAttentionKeys || shape.keys == 0 || shape.queries == 0) return false;
  for (const T& x : tensors)
    if (x.scalar_type() != at::kFloat || x.stride(3) != 1) return false;
  return true;
}

Bound bind_attention(const Site& site) {
  const T &q = site.operands[0], &k = site.operands[1], &v = site.operands[2], &out = site.results[0], &logsumexp = site.results[1];
  const AttentionShape shape = shape_of(site.op, q, k);
  if (is_for_ours({q, k, v, out}, shape) && is_dense_f32(logsumexp))
    return [f = vector_kernels().attention, a = heads<const float>(q), b = heads<const float>(k), c = heads<const float>(v),
            o = heads<float>(out), l = mutable_floats(logsumexp), shape] { f(a, b, c, o, l, shape); };
  return [q, k, v, out, logsumexp, causal = shape.causal, scale = number_attribute(site.op, "scale")] {
    const auto result = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, {}, scale);
    out.copy_(std::get<0>(result));
    logsumexp.copy_(std::get<1>(result));
  };
}

// Operands: dout, q, k, v, out, logsumexp.
Bound bind_attention_backward(const Site& site) {
  const T &dout = site.operands[0], &q = site.operands[1], &k = site.operands[2], &v = site.operands[3], &out = site.operands[4];
  const T &logsumexp = site.operands[5], &dq = site.results[0], &dk = site.results[1], &dv = site.results[2];
  const AttentionShape shape = shape_of(site.op, q, k);
  if (is_for_ours({dout, q, k, v, out, dq, dk, dv}, shape) && is_dense_f32(logsumexp))
    return [f = vector_kernels().attention_backward, d = heads<const float>(dout), a = heads<const float>(q), b = heads<const float>(k),
            c = heads<const float>(v), o = heads<const float>(out), l = floats(logsumexp), da = heads<float>(dq), db = heads<float>(dk),
            dc = heads<float>(dv), shape] { f(d, a, b, c, o, l, da, db, dc, shape); };
  return [=, causal = shape.causal, scale = number_attribute(site.op, "scale")] {
    const auto result = at::_scaled_dot_product_flash_attention_for_cpu_backward(dout, q, k, v, out, logsumexp, 0.0, causal, {}, scale);
    dq.copy_(std::get<0>(result));
    dk.copy_(std::get<1>(result));
    dv.copy_(std::get<2>(result));
  };
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static const Kernel all[] = {
      {.name = "scaled_dot_product_attention", .bind = bind_attention},
      {.name = "scaled_dot_product_attention_backward", .bind = bind_attention_backward},
  };
  return all;
}

}  // namespace penstock
