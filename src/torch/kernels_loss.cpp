#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "penstock/error.h"
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
                                std::int64_t ignore, double factor) {
  for (std::int64_t r = 0; r < shape.rows; ++r, logits += shape.width, out += shape.width) {
    const double scale = targets[r] == ignore ? 0 : factor;
    for (std::int64_t c = 0; c < shape.width; ++c) out[c] = scale == 0 ? 0 : std::exp(logits[c] - logsumexp[r]) * scale;
    if (targets[r] != ignore) out[targets[r]] -= scale;
  }
}

// The operand dense and in the dtype that the loss is computed in: low precision is widened.
T computed(const T& x) {
  return (is_low_precision(x) ? in_f32(x) : x).contiguous();
}
template <class Scalar>
const Scalar* data(const T& x) {
  return static_cast<const Scalar*>(x.data_ptr());
}
template <class Scalar>
Scalar* mutable_data(const T& x) {
  return static_cast<Scalar*>(x.data_ptr());
}

Bound bind_cross_entropy(const Site& site) {
  const T &logits = site.operands[0], &targets = site.operands[1], &loss = site.results[0], &logsumexp = site.results[1];
  const auto ignore = attribute<std::int64_t>(site.op, "ignore_index");
  return [f = vector_kernels().cross_entropy, logits, targets, loss, logsumexp, shape = rows_of(logits), ignore] {
    const T x = computed(logits), rows = targets.contiguous();
    const auto* at = data<std::int64_t>(rows);
    require_targets(at, shape.rows, shape.width, ignore);
    if (x.scalar_type() == at::kDouble)
      *mutable_data<double>(loss) = cross_entropy_f64(data<double>(x), at, mutable_data<double>(logsumexp), shape, ignore);
    else
      *mutable_floats(loss) = static_cast<float>(f(floats(x), at, mutable_floats(logsumexp), shape, ignore));
  };
}

// Operands: dloss, logits, targets, logsumexp.
Bound bind_cross_entropy_backward(const Site& site) {
  const T &dloss = site.operands[0], &logits = site.operands[1], &targets = site.operands[2], &logsumexp = site.operands[3];
  const auto ignore = attribute<std::int64_t>(site.op, "ignore_index");
  return [f = vector_kernels().cross_entropy_backward, dloss, logits, targets, logsumexp, out = site.results[0], shape = rows_of(logits),
          ignore] {
    const T x = computed(logits), rows = targets.contiguous();
    const bool direct = out.scalar_type() == x.scalar_type();
    const T gradient = direct ? out : at::empty_like(x);
    const auto* at = data<std::int64_t>(rows);
    if (x.scalar_type() == at::kDouble)
      cross_entropy_backward_f64(data<double>(x), at, data<double>(logsumexp), mutable_data<double>(gradient), shape, ignore,
                                 *data<double>(dloss));
    else
      f(floats(x), at, floats(logsumexp), mutable_floats(gradient), shape, ignore, *floats(dloss));
    if (!direct) out.copy_(gradient);
  };
}

}  // namespace

std::span<const Kernel> loss_kernels() {
  static const Kernel all[] = {
      {.name = "cross_entropy", .bind = bind_cross_entropy},
      {.name = "cross_entropy_backward", .bind = bind_cross_entropy_backward},
  };
  return all;
}

}  // namespace penstock
