// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/aten_kernels.h"
#include "torch/device_kernels.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

void require_targets(const std::int64_t* targets, std::int64_t n, std::int64_t classes, std::int64_t ignore) {
  for (std::int64_t i = 0; i < n; ++i)
    if (targets[i] != ignore && (targets[i] < 0 || targets[i] >= classes))
      throw Error(concat("cross_entropy: target ", targets[i], " is outside its ", classes, " classes"), {},
                  concat("targets to leave out are ", ignore));
}

// The f64 loss, with the C library's exp and log.
double cross_entropy_f64(const double* logits, const std::int64_t* targets, double* logsumexp, NormShape shape, std::int64_t ignore) {
  double loss = 0;
  for (std::int64_t r = 0; r < shape.rows; ++r, logits += shape.width) {
    const double top = *std::max_element(logits, logits + shape.width);
    double sum = 0;
    for (std::int64_t c = 0; c < shape.width; ++c) sum += std::exp(logits[c] - top);
    logsumexp[r] = top + std::log(sum);
    if (targets[r] != ignore) loss += logsumexp[r] - logits[targets[r]];
  }
  return loss;
}

void cross_entropy_backward_f64(const double* logits, const std::int64_t* targets, const double* logsumexp, double* out, NormShape shape,
                                std::int64_t ignore, std::int64_t begin, double factor) {
  for (std::int64_t r = 0; r < shape.rows; ++r, logits += shape.width, out += shape.width) {
    const double scale = targets[r] == ignore ? 0 : factor;
    for (std::int64_t c = 0; c < shape.width; ++c) out[c] = scale == 0 ? 0 : std::exp(logits[c] - logsumexp[r]) * scale;
    const std::int64_t target = targets[r] - begin;
    if (targets[r] != ignore && target >= 0 && target < shape.width) out[target] -= scale;
  }
}

// The logits as they are read: bf16 as our own loops read it, all else as it is computed in.
T in_loop_dtype(const T& x) {
  return x.scalar_type() == at::kBFloat16 ? x.contiguous() : widened_dense(x);
}

// f(loops, E) with our own loops and the type of their elements, for a tensor of bf16 or f32.
template <class F>
void by_element(const T& x, F f) {
  x.scalar_type() == at::kBFloat16 ? f(vector_kernels().bf16, Bf16{}) : f(vector_kernels(), float{});
}

Bound bind_cross_entropy(const Site& site) {
  const T &logits = site.operands[0], &targets = site.operands[1], &loss = site.results[0], &logsumexp = site.results[1];
  const auto ignore = attribute<std::int64_t>(site.op, "ignore_index");
  return [logits, targets, loss, logsumexp, shape = rows_of(logits), ignore] {
    const T x = in_loop_dtype(logits), rows = targets.contiguous();
    const auto* at = data_of<const std::int64_t>(rows);
    require_targets(at, shape.rows, shape.width, ignore);
    if (x.scalar_type() == at::kDouble)
      *data_of<double>(loss) = cross_entropy_f64(data_of<double>(x), at, data_of<double>(logsumexp), shape, ignore);
    else
      by_element(x, [&]<class E>(const auto& own, E) {
        *mutable_floats(loss) = static_cast<float>(own.cross_entropy(data_of<E>(x), at, mutable_floats(logsumexp), shape, ignore));
      });
  };
}

// Operands: dloss, logits, targets, logsumexp.
Bound bind_cross_entropy_backward(const Site& site) {
  const T &dloss = site.operands[0], &logits = site.operands[1], &targets = site.operands[2], &logsumexp = site.operands[3];
  const auto ignore = attribute<std::int64_t>(site.op, "ignore_index"), begin = attribute_or(site.op, "begin", std::int64_t{0});
  return [dloss, logits, targets, logsumexp, out = site.results[0], shape = rows_of(logits), ignore, begin] {
    const T x = in_loop_dtype(logits), rows = targets.contiguous(), sums = logsumexp.contiguous();
    const bool direct = out.scalar_type() == x.scalar_type();
    const T gradient = direct ? out : at::empty_like(x);
    const auto* at = data_of<const std::int64_t>(rows);
    if (x.scalar_type() == at::kDouble)
      cross_entropy_backward_f64(data_of<double>(x), at, data_of<double>(sums), data_of<double>(gradient), shape, ignore, begin,
                                 *data_of<double>(dloss));
    else
      by_element(x, [&]<class E>(const auto& own, E) {
        own.cross_entropy_backward(data_of<E>(x), at, floats(sums), data_of<E>(gradient), shape, ignore, begin, *floats(dloss));
      });
    if (!direct) out.copy_(gradient);
  };
}

// The logsumexp of numbers; -inf where there is nothing else.
template <class Scalar>
Scalar logsumexp_of(const Scalar* x, std::int64_t n, std::int64_t stride = 1) {
  Scalar top = x[0], sum = 0;
  for (std::int64_t i = 1; i < n; ++i) top = std::max(top, x[i * stride]);
  const bool none = top == -std::numeric_limits<Scalar>::infinity();  // then a sum of -inf and NaN is what it is
  for (std::int64_t i = 0; i < n; ++i) sum += none ? x[i * stride] : std::exp(x[i * stride] - top);
  return none ? sum : top + std::log(sum);
}

void logsumexp_of_rows(const T& x, void* out) {
  const NormShape shape = rows_of(x);
  if (x.scalar_type() != at::kDouble) return vector_kernels().logsumexp(floats(x), static_cast<float*>(out), shape);
  for (std::int64_t r = 0; r < shape.rows; ++r)
    static_cast<double*>(out)[r] = logsumexp_of(data_of<double>(x) + r * shape.width, shape.width);
}

// The logits of targets that are among the classes from `begin` on; 0 for the others.
template <class Scalar>
void target_logits(const Scalar* logits, const std::int64_t* targets, Scalar* out, NormShape shape, std::int64_t begin) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const std::int64_t target = targets[r] - begin;
    out[r] = target >= 0 && target < shape.width ? logits[r * shape.width + target] : 0;
  }
}

Bound bind_cross_entropy_parts(const Site& site) {
  const T &logits = site.operands[0], &targets = site.operands[1];
  return [logits, targets, out = site.results[0], ends = attribute<std::vector<std::int64_t>>(site.op, "ends"),
          begin = attribute_or(site.op, "begin", std::int64_t{0})] {
    const T rows = targets.contiguous();
    const auto* at = data_of<const std::int64_t>(rows);
    std::int64_t from = 0;
    for (std::size_t p = 0; p < ends.size(); from = ends[p++]) {
      const T x = widened_dense(logits.narrow(1, from, ends[p] - from)), part = out[static_cast<std::int64_t>(p)];
      logsumexp_of_rows(x, part[0].data_ptr());
      by_scalar(x, [&]<class Scalar>(Scalar) {
        target_logits(data_of<const Scalar>(x), at, data_of<Scalar>(part[1]), rows_of(x), begin + from);
      });
    }
  };
}

// dlogits = exp(logits - logsumexp) * dlogsumexp + onehot(target) * dlogit for each range of classes: row by row by the backward of a whole
// loss, from which a target that is no class takes nothing.
template <class Scalar, class Backward>
void parts_backward(Backward backward, const Scalar* dparts, const Scalar* logits, const std::int64_t* targets, const Scalar* parts,
                    Scalar* out, NormShape shape, const std::vector<std::int64_t>& ends, std::int64_t begin) {
  constexpr std::int64_t none = -1, ignore = -2;
  for (std::int64_t r = 0; r < shape.rows; ++r, logits += shape.width, out += shape.width) {
    std::int64_t from = 0, row = r;  // of the range's logsumexps; those of the target logits follow
    for (const std::int64_t end : ends) {
      const std::int64_t& outside = dparts[row] == 0 ? ignore : none;
      backward(logits + from, &outside, parts + row, out + from, NormShape{1, end - from}, ignore, 0, dparts[row]);
      const std::int64_t target = targets[r] - begin;
      if (target >= from && target < end) out[target] += dparts[row + shape.rows];
      from = end;
      row += 2 * shape.rows;
    }
  }
}

// Operands: dparts, logits, targets, parts.
Bound bind_cross_entropy_parts_backward(const Site& site) {
  return [f = vector_kernels().cross_entropy_backward, dparts = site.operands[0], logits = site.operands[1], targets = site.operands[2],
          parts = site.operands[3], out = site.results[0], ends = attribute<std::vector<std::int64_t>>(site.op, "ends"),
          begin = attribute_or(site.op, "begin", std::int64_t{0})] {
    const T x = widened_dense(logits), rows = targets.contiguous(), of = parts.contiguous(), dof = dparts.contiguous();
    const bool direct = out.scalar_type() == x.scalar_type();
    const T gradient = direct ? out : at::empty_like(x);
    const auto* at = data_of<const std::int64_t>(rows);
    const auto run = [&]<class Scalar>(const auto& backward, Scalar) {
      parts_backward(backward, data_of<const Scalar>(dof), data_of<const Scalar>(x), at, data_of<const Scalar>(of),
                     data_of<Scalar>(gradient), rows_of(x), ends, begin);
    };
    x.scalar_type() == at::kDouble ? run(cross_entropy_backward_f64, double{}) : run(f, float{});
    if (!direct) out.copy_(gradient);
  };
}

// Each part is a row of logsumexps and one of target logits.
template <class Scalar>
Scalar join_parts(const Scalar* parts, std::int64_t count, const std::int64_t* targets, Scalar* logsumexp, std::int64_t n,
                  std::int64_t ignore) {
  double loss = 0;
  for (std::int64_t r = 0; r < n; ++r) {
    logsumexp[r] = logsumexp_of(parts + r, count, 2 * n);
    if (targets[r] == ignore) continue;
    Scalar logit = 0;
    for (std::int64_t p = 0; p < count; ++p) logit += parts[(2 * p + 1) * n + r];
    loss += static_cast<double>(logsumexp[r] - logit);
  }
  return static_cast<Scalar>(loss);
}

Bound bind_cross_entropy_join(const Site& site) {
  const T &parts = site.operands[0], &targets = site.operands[1], &loss = site.results[0], &logsumexp = site.results[1];
  const auto ignore = attribute<std::int64_t>(site.op, "ignore_index"), classes = attribute<std::int64_t>(site.op, "classes");
  return [parts, targets, loss, logsumexp, ignore, classes] {
    const T x = parts.contiguous(), rows = targets.contiguous();
    const auto* at = data_of<const std::int64_t>(rows);
    const std::int64_t count = x.size(0), n = x.size(2);
    require_targets(at, n, classes, ignore);
    by_scalar(x, [&]<class Scalar>(Scalar) {
      *data_of<Scalar>(loss) = join_parts(data_of<const Scalar>(x), count, at, data_of<Scalar>(logsumexp), n, ignore);
    });
  };
}

}  // namespace

std::span<const Kernel> loss_kernels() {
  static const Kernel all[] = {
      {.name = "cross_entropy", .bind = bind_cross_entropy, .bind_device = own_or<cross_entropy_by_kernel, cross_entropy_by_aten>},
      {.name = "cross_entropy_backward",
       .bind = bind_cross_entropy_backward,
       .bind_device = own_or<cross_entropy_backward_by_kernel, cross_entropy_backward_by_aten>},
      {.name = "cross_entropy_join", .bind = bind_cross_entropy_join, .bind_device = cross_entropy_join_by_aten},
      {.name = "cross_entropy_parts", .bind = bind_cross_entropy_parts, .bind_device = cross_entropy_parts_by_aten},
      {.name = "cross_entropy_parts_backward",
       .bind = bind_cross_entropy_parts_backward,
       .bind_device = cross_entropy_parts_backward_by_aten},
  };
  return all;
}

}  // namespace penstock
