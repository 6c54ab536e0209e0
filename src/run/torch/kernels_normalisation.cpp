// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "torch/aten_composed.h"
#include "torch/device_kernels.h"

namespace penstock {
namespace {

using T = at::Tensor;

// ATen's norms read some operands as if they all were dense.
std::optional<T> optional(const AtTensors& operands, std::size_t i) {
  return i < operands.size() ? std::optional<T>(widened_dense(operands[i])) : std::nullopt;
}

Bound bind_layer_norm(const Site& site) {
  const T &x = site.operands[0], &y = site.results[0], &mean = site.results[1], &rstd = site.results[2];
  const double eps = number_attribute(site.op, "eps");
  const bool affine = site.operands.size() == 3;
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.layer_norm, p = Place<const E>(x), w = affine ? floats(site.operands[1]) : nullptr,
            b = affine ? floats(site.operands[2]) : nullptr, q = Place<E>(y), m = mutable_floats(mean), r = mutable_floats(rstd),
            shape = rows_of(x), eps] { f(p, w, b, q, m, r, shape, static_cast<float>(eps)); };
  };
  if (are_dense_f32(mean, rstd) && (!affine || are_dense_f32(site.operands[1], site.operands[2])))
    if (Bound own = bind_dense(bind, x, y)) return own;
  return composed(site, [eps](const AtTensors& in) {
    return in_order_of(at::native_layer_norm(widened_dense(in[0]), {in[0].size(-1)}, optional(in, 1), optional(in, 2), eps));
  });
}

// Operands: dy, x, mean, rstd and, with the results dweight and dbias, weight and bias.
Bound bind_layer_norm_backward(const Site& site) {
  const std::span<const T> operands = site.operands, results = site.results;
  const bool affine = operands.size() == 6, adds_weight = site.accumulate >> 1 & 1u, adds_bias = site.accumulate >> 2 & 1u;
  const bool dense = std::ranges::all_of(operands.subspan(2), is_dense_f32) && std::ranges::all_of(results.subspan(1), is_dense_f32);
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.layer_norm_backward, dy = Place<const E>(operands[0]), x = Place<const E>(operands[1]), mean = floats(operands[2]),
            rstd = floats(operands[3]), w = affine ? floats(operands[4]) : nullptr, dx = Place<E>(results[0]),
            dw = affine ? mutable_floats(results[1]) : nullptr, db = affine ? mutable_floats(results[2]) : nullptr,
            shape = rows_of(operands[1]), adds_weight] { f(dy, x, mean, rstd, w, dx, dw, db, shape, adds_weight); };
  };
  if (dense && adds_weight == adds_bias)
    if (Bound own = bind_dense(bind, operands[0], operands[1], results[0])) return own;
  return composed(site, [affine](const AtTensors& in) {
    return in_order_of(at::native_layer_norm_backward(widened_dense(in[0]), widened_dense(in[1]), {in[1].size(-1)}, widened_dense(in[2]),
                                                      widened_dense(in[3]), optional(in, 4), optional(in, 5), {true, affine, affine}));
  });
}

// y = x rstd weight with rstd = 1 / sqrt(mean(x^2) + eps).
Bound bind_rms_norm(const Site& site) {
  return composed(site, [eps = number_attribute(site.op, "eps")](const AtTensors& in) {
    const T x = widened_dense(in[0]), rstd = at::rsqrt(at::mean(x * x, {-1}, true) + eps);
    return AtTensors{x * rstd * widened_dense(in[1]), rstd};
  });
}

// Operands: dy, x, rstd, weight. With h = x rstd and g = dy weight: dx = rstd (g - h mean(g h)); dweight = sum of dy h over the rows.
Bound bind_rms_norm_backward(const Site& site) {
  return composed(site, [](const AtTensors& in) {
    const T d = widened_dense(in[0]), h = widened_dense(in[1]) * in[2], g = d * widened_dense(in[3]);
    return AtTensors{in[2] * (g - h * at::mean(g * h, {-1}, true)), at::sum((d * h).reshape({-1, in[3].size(0)}), {0})};
  });
}

// The kernel is ATen's training mode without running statistics.
Bound bind_batch_norm(const Site& site) {
  return [x = site.operands[0], weight = site.operands[1], bias = site.operands[2], y = site.results[0], mean = site.results[1],
          rstd = site.results[2], eps = number_attribute(site.op, "eps")]() mutable {
    T wide = widened(y);
    at::native_batch_norm_out(wide, mean, rstd, widened_dense(x), widened_dense(weight), widened_dense(bias), {}, {}, true, 0, eps);
    if (is_low_precision(x)) y.copy_(wide);
  };
}

// Operands: dy, x, mean, rstd, weight.
Bound bind_batch_norm_backward(const Site& site) {
  return composed(site, [](const AtTensors& in) {
    return in_order_of(at::native_batch_norm_backward(widened_dense(in[0]), widened_dense(in[1]), widened_dense(in[4]), {}, {},
                                                      widened_dense(in[2]), widened_dense(in[3]), true, 0, {true, true, true}));
  });
}

bool is_last(const Op& op, const T& x) {
  return wrap(attribute<std::int64_t>(op, "dim"), x.dim()) == x.dim() - 1;
}

Bound bind_softmax(const Site& site, bool log) {
  const T &x = site.operands[0], &y = site.results[0];
  if (is_last(site.op, x) && x.numel() > 0)
    if (Bound own = bind_loop([](const auto& loops) { return loops.softmax; }, std::tie(x), y, rows_of(x), log)) return own;
  return unary(site, [log, dim = attribute<std::int64_t>(site.op, "dim")](T& o, const T& a) {
    log ? at::_log_softmax_out(o, a, dim, false) : at::_softmax_out(o, a, dim, false);
  });
}

Bound bind_softmax_backward(const Site& site, bool log) {
  const T &dy = site.operands[0], &y = site.operands[1], &dx = site.results[0];
  if (is_last(site.op, y) && y.numel() > 0)
    if (Bound own = bind_loop([](const auto& loops) { return loops.softmax_backward; }, std::tie(dy, y), dx, rows_of(y), log)) return own;
  return binary(site, [log, dim = attribute<std::int64_t>(site.op, "dim")](T& o, const T& d, const T& v) {
    log ? at::_log_softmax_backward_data_out(o, d, v, dim, v.scalar_type()) : at::_softmax_backward_data_out(o, d, v, dim, v.scalar_type());
  });
}

}  // namespace

std::span<const Kernel> normalisation_kernels() {
  static const Kernel all[] = {
      {.name = "native_layer_norm", .bind = bind_layer_norm, .bind_device = own_or<layer_norm_by_kernel, bind_layer_norm>},
      {.name = "native_layer_norm_backward",
       .bind = bind_layer_norm_backward,
       .bind_device = own_or<layer_norm_backward_by_kernel, bind_layer_norm_backward>,
       .accumulates = 0b110},
      {.name = "_fused_rms_norm", .bind = bind_rms_norm, .bind_device = own_or<rms_norm_by_kernel, bind_rms_norm>},
      {.name = "_fused_rms_norm_backward",
       .bind = bind_rms_norm_backward,
       .bind_device = own_or<rms_norm_backward_by_kernel, bind_rms_norm_backward>,
       .accumulates = 0b10},
      {.name = "native_batch_norm", .bind = bind_batch_norm},
      {.name = "native_batch_norm_backward", .bind = bind_batch_norm_backward, .accumulates = 0b110},
      {.name = "softmax", .bind = [](const Site& s) { return bind_softmax(s, false); }},
      {.name = "log_softmax", .bind = [](const Site& s) { return bind_softmax(s, true); }},
      {.name = "_softmax_backward_data", .bind = [](const Site& s) { return bind_softmax_backward(s, false); }},
      {.name = "_log_softmax_backward_data", .bind = [](const Site& s) { return bind_softmax_backward(s, true); }},
  };
  return all;
}

}  // namespace penstock
