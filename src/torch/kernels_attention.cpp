#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>

#include <algorithm>
#include <cmath>

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

// What a row of one of the two has in the whole: exp of how far its logsumexp lies below the joint one.
template <class Scalar>
void join_rows(const Scalar* a, const Scalar* la, const Scalar* b, const Scalar* lb, Scalar* out, Scalar* logsumexp, NormShape shape) {
  for (std::int64_t r = 0; r < shape.rows; ++r, a += shape.width, b += shape.width, out += shape.width) {
    const Scalar top = std::max(la[r], lb[r]), least = std::min(la[r], lb[r]);
    logsumexp[r] = std::isinf(least) ? top : top + std::log1p(std::exp(least - top));
    const Scalar wa = std::isinf(la[r]) ? 0 : std::exp(la[r] - logsumexp[r]), wb = std::isinf(lb[r]) ? 0 : std::exp(lb[r] - logsumexp[r]);
    for (std::int64_t c = 0; c < shape.width; ++c) out[c] = wa * a[c] + wb * b[c];
  }
}

// Operands: out, logsumexp, other out, other logsumexp.
Bound bind_attention_join(const Site& site) {
  return [a = site.operands[0], la = site.operands[1], b = site.operands[2], lb = site.operands[3], out = site.results[0],
          logsumexp = site.results[1], shape = rows_of(site.operands[0])] {
    const auto dense = [](const T& x) { return (is_low_precision(x) ? in_f32(x) : x).contiguous(); };
    const T x = dense(a), lx = dense(la), y = dense(b), ly = dense(lb), sum = is_low_precision(out) ? in_f32(out) : out;
    const auto join = [&]<class Scalar>(Scalar*) {
      const auto data = [](const T& of) { return static_cast<Scalar*>(of.data_ptr()); };
      join_rows<Scalar>(data(x), data(lx), data(y), data(ly), data(sum), data(logsumexp), shape);
    };
    x.scalar_type() == at::kDouble ? join(static_cast<double*>(nullptr)) : join(static_cast<float*>(nullptr));
    if (is_low_precision(out)) out.copy_(sum);
  };
}

}  // namespace

std::span<const Kernel> attention_kernels() {
  static const Kernel all[] = {
      {.name = "attention_join", .bind = bind_attention_join},
      {.name = "scaled_dot_product_attention", .bind = bind_attention},
      {.name = "scaled_dot_product_attention_backward", .bind = bind_attention_backward},
  };
  return all;
}

}  // namespace penstock
