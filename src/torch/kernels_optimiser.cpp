#include <ATen/TensorOperators.h>

#include <cmath>

#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

double scalar_of(const T& x) {
  return x.scalar_type() == at::kDouble  ? *static_cast<const double*>(x.data_ptr())
         : x.scalar_type() == at::kFloat ? static_cast<double>(*floats(x))
                                         : x.item().toDouble();
}

struct Adamw {
  double beta1, beta2, eps, weight_decay;
};

void adamw_f64(const double* p, const double* g, const double* m, const double* v, double* p_out, double* m_out, double* v_out,
               std::int64_t n, const Adamw& a, double rate, double step) {
  const double step_size = rate / (1 - std::pow(a.beta1, step)), root = std::sqrt(1 - std::pow(a.beta2, step));
  const double decay = 1 - rate * a.weight_decay;
  for (std::int64_t i = 0; i < n; ++i) {
    const double first = a.beta1 * m[i] + (1 - a.beta1) * g[i], second = a.beta2 * v[i] + (1 - a.beta2) * g[i] * g[i];
    p_out[i] = p[i] * decay - step_size * first / (std::sqrt(second) / root + a.eps);
    m_out[i] = first;
    v_out[i] = second;
  }
}

// Operands: parameter, gradient, first, second, learning rate, step. Each result may lie over its operand. Low precision goes through f64.
Bound bind_adamw(const Site& site) {
  const Adamw a{number_attribute(site.op, "beta1"), number_attribute(site.op, "beta2"), number_attribute(site.op, "eps"),
                number_attribute(site.op, "weight_decay")};
  std::vector<T> in(site.operands.begin(), site.operands.end()), out(site.results.begin(), site.results.end());
  bool dense = true;
  for (std::size_t i = 0; i < 4; ++i) dense = dense && is_dense_f32(in[i]);
  for (const T& x : out) dense = dense && is_dense_f32(x);
  const auto* step = static_cast<const std::int64_t*>(in[5].data_ptr());
  if (dense)
    return [f = vector_kernels().adamw, p = floats(in[0]), g = floats(in[1]), m = floats(in[2]), v = floats(in[3]),
            p_out = mutable_floats(out[0]), m_out = mutable_floats(out[1]), v_out = mutable_floats(out[2]), n = in[0].numel(), rate = in[4],
            step, a] {
      const double lr = scalar_of(rate), t = static_cast<double>(*step);
      f(p, g, m, v, p_out, m_out, v_out, n,
        {static_cast<float>(a.beta1), static_cast<float>(a.beta2), static_cast<float>(a.eps), static_cast<float>(1 - lr * a.weight_decay),
         static_cast<float>(lr / (1 - std::pow(a.beta1, t))), static_cast<float>(1 / std::sqrt(1 - std::pow(a.beta2, t)))});
    };
  return [in, out, step, a] {
    T wide[4];
    double* data[4];
    for (std::size_t i = 0; i < 4; ++i) {
      wide[i] = in[i].to(at::kDouble, false, true).contiguous();
      data[i] = static_cast<double*>(wide[i].data_ptr());
    }
    adamw_f64(data[0], data[1], data[2], data[3], data[0], data[2], data[3], in[0].numel(), a, scalar_of(in[4]),
              static_cast<double>(*step));
    out[0].copy_(wide[0]);
    out[1].copy_(wide[2]);
    out[2].copy_(wide[3]);
  };
}

// Operands: parameter, gradient, velocity, learning rate. v' = momentum v + g + decay p; p' = p - rate v'.
Bound bind_sgd(const Site& site) {
  return [p = site.operands[0], g = site.operands[1], v = site.operands[2], rate = site.operands[3], p_out = site.results[0],
          v_out = site.results[1], momentum = number_attribute(site.op, "momentum"), decay = number_attribute(site.op, "weight_decay")] {
    T velocity = v * momentum;
    velocity.add_(g);
    if (decay != 0) velocity.add_(p, decay);
    const T next = p - velocity * scalar_of(rate);
    v_out.copy_(velocity);
    p_out.copy_(next);
  };
}

const Kernel kKernels[] = {
    {.name = "adamw", .bind = bind_adamw},
    {.name = "sgd", .bind = bind_sgd},
};

}  // namespace

std::span<const Kernel> optimiser_kernels() {
  return kKernels;
}

}  // namespace penstock
