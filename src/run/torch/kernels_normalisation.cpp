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

#include "torch/device_kernels.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

// The operand in the dtype to compute in: statistics of low-precision tensors are f32, so these run in f32 as a whole. It is dense: ATen's
// norms read some operands as if they all were.
T computed(const T& x) {
  return (is_low_precision(x) ? in_f32(x) : x).contiguous();
}
std::optional<T> optional(std::span<const T> operands, std::size_t i) {
  return i < operands.size() ? std::optional<T>(computed(operands[i])) : std::nullopt;
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
  return [operands = std::vector<T>(site.operands.begin(), site.operands.end()), y, mean, rstd, eps] {
    const auto out =
        at::native_layer_norm(computed(operands[0]), {operands[0].size(-1)}, optional(operands, 1), optional(operands, 2), eps);
    y.copy_(std::get<0>(out));
    mean.copy_(std::get<1>(out));
    rstd.copy_(std::get<2>(out));
  };
}

// Operands: dy, x, mean, rstd and, with the results dweight and dbias, weight and bias.
Bound bind_layer_norm_backward(const Site& site) {
  const bool affine = site.operands.size() == 6;
  std::vector<T> operands(site.operands.begin(), site.operands.end()), results(site.results.begin(), site.results.end());
  const unsigned accumulate = site.accumulate;
  bool dense = true;
  for (std::size_t i = 2; i < operands.size(); ++i) dense = dense && is_dense_f32(operands[i]);
  for (std::size_t i = 1; i < results.size(); ++i) dense = dense && is_dense_f32(results[i]);
  const bool together = !affine || ((accumulate >> 1 & 1) == (accumulate >> 2 & 1));
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.layer_norm_backward, dy = Place<const E>(operands[0]), x = Place<const E>(operands[1]), mean = floats(operands[2]),
            rstd = floats(operands[3]), w = affine ? floats(operands[4]) : nullptr, dx = Place<E>(results[0]),
            dw = affine ? mutable_floats(results[1]) : nullptr, db = affine ? mutable_floats(results[2]) : nullptr,
            shape = rows_of(operands[1]), add = (accumulate >> 1 & 1) != 0] { f(dy, x, mean, rstd, w, dx, dw, db, shape, add); };
  };
  if (dense && together)
    if (Bound own = bind_dense(bind, operands[0], operands[1], results[0])) return own;
  return [operands, results, accumulate, affine] {
    const auto out =
        at::native_layer_norm_backward(computed(operands[0]), computed(operands[1]), {operands[1].size(-1)}, computed(operands[2]),
                                       computed(operands[3]), optional(operands, 4), optional(operands, 5), {true, affine, affine});
    results[0].copy_(std::get<0>(out));
    if (!affine) return;
    deliver(results[1], std::get<1>(out), accumulate >> 1 & 1);
    deliver(results[2], std::get<2>(out), accumulate >> 2 & 1);
  };
}

// y = x rstd weight with rstd = 1 / sqrt(mean(x^2) + eps).
Bound bind_rms_norm(const Site& site) {
  return [x = site.operands[0], weight = site.operands[1], y = site.results[0], rstd = site.results[1],
          eps = number_attribute(site.op, "eps")] {
    const T wide = computed(x);
    rstd.copy_(at::rsqrt(at::mean(wide * wide, {-1}, true) + eps));
    y.copy_(wide * rstd * computed(weight));
  };
}

// With h = x rstd and g = dy weight: dx = rstd (g - h mean(g h)); dweight = sum of dy h over the rows.
Bound bind_rms_norm_backward(const Site& site) {
  return [dy = site.operands[0], x = site.operands[1], rstd = site.operands[2], weight = site.operands[3], dx = site.results[0],
          dweight = site.results[1], accumulate = (site.accumulate >> 1 & 1) != 0] {
    const T d = computed(dy), h = computed(x) * rstd, g = d * computed(weight);
    dx.copy_(rstd * (g - h * at::mean(g * h, {-1}, true)));
    deliver(dweight, at::sum((d * h).reshape({-1, dweight.size(0)}), {0}), accumulate);
  };
}

// The kernel is ATen's training mode without running statistics.
Bound bind_batch_norm(const Site& site) {
  return [x = site.operands[0], weight = site.operands[1], bias = site.operands[2], y = site.results[0], mean = site.results[1],
          rstd = site.results[2], eps = number_attribute(site.op, "eps")]() mutable {
    T wide = is_low_precision(x) ? in_f32(y) : y;
    at::native_batch_norm_out(wide, mean, rstd, computed(x), computed(weight), computed(bias), {}, {}, true, 0, eps);
    if (is_low_precision(x)) y.copy_(wide);
  };
}

// Operands: dy, x, mean, rstd, weight.
Bound bind_batch_norm_backward(const Site& site) {
  return [operands = std::vector<T>(site.operands.begin(), site.operands.end()),
          results = std::vector<T>(site.results.begin(), site.results.end()), accumulate = site.accumulate] {
    const auto out = at::native_batch_norm_backward(computed(operands[0]), computed(operands[1]), computed(operands[4]), {}, {},
                                                    computed(operands[2]), computed(operands[3]), true, 0, {true, true, true});
    results[0].copy_(std::get<0>(out));
    deliver(results[1], std::get<1>(out), accumulate >> 1 & 1);
    deliver(results[2], std::get<2>(out), accumulate >> 2 & 1);
  };
}

bool is_last(const Op& op, const T& x) {
  return wrap(attribute<std::int64_t>(op, "dim"), x.dim()) == x.dim() - 1;
}

Bound bind_softmax(const Site& site, bool log) {
  const T &x = site.operands[0], &y = site.results[0];
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.softmax, p = Place<const E>(x), q = Place<E>(y), shape = rows_of(x), log] { f(p, q, shape, log); };
  };
  if (is_last(site.op, x) && x.numel() > 0)
    if (Bound own = bind_dense(bind, x, y)) return own;
  return unary(site, [log, dim = attribute<std::int64_t>(site.op, "dim")](T& o, const T& a) {
    log ? at::_log_softmax_out(o, a, dim, false) : at::_softmax_out(o, a, dim, false);
  });
}

Bound bind_softmax_backward(const Site& site, bool log) {
  const T &dy = site.operands[0], &y = site.operands[1], &dx = site.results[0];
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.softmax_backward, d = Place<const E>(dy), p = Place<const E>(y), q = Place<E>(dx), shape = rows_of(y), log] {
      f(d, p, q, shape, log);
    };
  };
  if (is_last(site.op, y) && y.numel() > 0)
    if (Bound own = bind_dense(bind, dy, y, dx)) return own;
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
