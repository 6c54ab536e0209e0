#include <ATen/TensorOperators.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <vector>

#include "torch/adamw_numbers.h"
#include "torch/aten_kernels.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

double scalar_of(const T& x) {
  return x.scalar_type() == at::kDouble  ? *static_cast<const double*>(x.data_ptr())
         : x.scalar_type() == at::kFloat ? static_cast<double>(*floats(x))
                                         : x.item().toDouble();
}

// The update of n elements in one step: (p, g, m, v, p_out, m_out, v_out, n). Each result may lie over its operand.
template <class Number>
auto adamw_loop(const Adamw& a, double rate, double step) {
  const double step_size = rate / (1 - std::pow(a.beta1, step)), root = std::sqrt(1 - std::pow(a.beta2, step));
  const double decay = 1 - rate * a.weight_decay;
  if constexpr (std::is_same_v<Number, float>) {
    const auto f32 = [](double number) { return static_cast<float>(number); };
    const AdamwScalars scalars{f32(a.beta1),     f32(a.beta2), f32(a.eps),     f32(1 - a.beta1),
                               f32(1 - a.beta2), f32(decay),   f32(step_size), f32(1 / root)};
    return [f = vector_kernels().adamw, scalars](const float* p, const float* g, const float* m, const float* v, float* p_out, float* m_out,
                                                 float* v_out, std::int64_t n) { f(p, g, m, v, p_out, m_out, v_out, n, scalars); };
  } else {
    return [=](const double* p, const double* g, const double* m, const double* v, double* p_out, double* m_out, double* v_out,
               std::int64_t n) {
      for (std::int64_t i = 0; i < n; ++i) {
        const double first = a.beta1 * m[i] + (1 - a.beta1) * g[i], second = a.beta2 * v[i] + (1 - a.beta2) * g[i] * g[i];
        p_out[i] = p[i] * decay - step_size * first / (std::sqrt(second) / root + a.eps);
        m_out[i] = first;
        v_out[i] = second;
      }
    };
  }
}

// Operands: parameter, gradient, first, second, learning rate, step. Each result may lie over its operand. Low precision goes through f64.
Bound bind_adamw(const Site& site) {
  const Adamw a = adamw_of(site.op);
  std::vector<T> in(site.operands.begin(), site.operands.end()), out(site.results.begin(), site.results.end());
  bool dense = true;
  for (std::size_t i = 0; i < 4; ++i) dense = dense && is_dense_f32(in[i]);
  for (const T& x : out) dense = dense && is_dense_f32(x);
  const Place<const std::int64_t> step(in[5]);
  if (dense)
    return [p = floats(in[0]), g = floats(in[1]), m = floats(in[2]), v = floats(in[3]), p_out = mutable_floats(out[0]),
            m_out = mutable_floats(out[1]), v_out = mutable_floats(out[2]), n = in[0].numel(), rate = in[4], step,
            a] { adamw_loop<float>(a, scalar_of(rate), static_cast<double>(*step))(p, g, m, v, p_out, m_out, v_out, n); };
  return [in, out, step, a] {
    T wide[4];
    double* data[4];
    for (std::size_t i = 0; i < 4; ++i) {
      wide[i] = in[i].to(at::kDouble, false, true).contiguous();
      data[i] = static_cast<double*>(wide[i].data_ptr());
    }
    adamw_loop<double>(a, scalar_of(in[4]), static_cast<double>(*step))(data[0], data[1], data[2], data[3], data[0], data[2], data[3],
                                                                        in[0].numel());
    out[0].copy_(wide[0]);
    out[1].copy_(wide[2]);
    out[2].copy_(wide[3]);
  };
}

// Elements per block, whose operands fit into the first cache together; a multiple of every vector's length.
constexpr std::int64_t kPart = 1024;

// adamw with gradient*factor; results 3 to 5, where there are any, get the old values. `operands` are adamw's. A block is read as a whole
// before any of it is written, so every result may lie over any operand.
template <class Number>
void scaled_adamw(const Adamw& a, std::span<const T> operands, Number factor, std::span<const T> results) {
  const auto loop =
      adamw_loop<Number>(a, scalar_of(operands[4]), static_cast<double>(*static_cast<const std::int64_t*>(operands[5].data_ptr())));
  T dense[4];
  std::array<const Number*, 4> from;
  std::array<Number*, 6> to;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<const Number*>((dense[i] = operands[i].contiguous()).data_ptr());
  for (std::size_t i = 0; i < results.size(); ++i) to[i] = static_cast<Number*>(results[i].data_ptr());
  Number part[4][kPart];
  auto& [p, g, m, v] = part;
  for (std::int64_t i = 0, n = operands[0].numel(); i < n; i += kPart) {
    const std::int64_t count = std::min(kPart, n - i);
    for (std::size_t c = 0; c < from.size(); ++c) std::copy_n(from[c] + i, count, part[c]);
    for (std::int64_t k = 0; k < count; ++k) g[k] *= factor;
    loop(p, g, m, v, to[0] + i, to[1] + i, to[2] + i, count);
    if (results.size() < 6) continue;
    std::copy_n(p, count, to[3] + i);
    std::copy_n(m, count, to[4] + i);
    std::copy_n(v, count, to[5] + i);
  }
}

template <class Number>
Number number_of(const T& scalar) {
  return *static_cast<const Number*>(scalar.data_ptr());
}

// Operands: adamw's, assumed. Results: adamw's, then the old values.
template <class Number>
Bound bind_ahead(const Site& site) {
  return [a = adamw_of(site.op), in = std::vector<T>(site.operands.begin(), site.operands.end()),
          out = std::vector<T>(site.results.begin(), site.results.end())] {
    scaled_adamw<Number>(a, std::span(in).first(6), number_of<Number>(in[6]), out);
  };
}

// Operands: parameter, first, second, adamw's with the kept values, assumed, factor. A factor that is NaN counts as differing from the
// assumed one. Where the results lie elsewhere than the update, they are computed anew: the same bits.
template <class Number>
Bound bind_validated(const Site& site) {
  bool in_place = true;
  for (std::size_t i = 0; i < 3; ++i) in_place = in_place && site.results[i].data_ptr() == site.operands[i].data_ptr();
  return [a = adamw_of(site.op), in = std::vector<T>(site.operands.begin(), site.operands.end()),
          out = std::vector<T>(site.results.begin(), site.results.end()), in_place] {
    const Number assumed = number_of<Number>(in[9]), factor = number_of<Number>(in[10]);
    if (!in_place || factor != assumed) scaled_adamw<Number>(a, std::span(in).subspan(3, 6), factor, out);
  };
}

Bound bind_adamw_ahead(const Site& site) {
  return site.operands[0].scalar_type() == at::kDouble ? bind_ahead<double>(site) : bind_ahead<float>(site);
}
Bound bind_adamw_validated(const Site& site) {
  return site.operands[0].scalar_type() == at::kDouble ? bind_validated<double>(site) : bind_validated<float>(site);
}

// Without decay, in one pass over dense f32: the bits of the general way, as nothing is rounded together.
Bound bind_plain_sgd(const Site& site) {
  return [parameter = floats(site.operands[0]), gradient = floats(site.operands[1]), velocity = floats(site.operands[2]),
          rate = site.operands[3], parameter_out = mutable_floats(site.results[0]), velocity_out = mutable_floats(site.results[1]),
          n = site.operands[0].numel(), momentum = static_cast<float>(number_attribute(site.op, "momentum"))] {
    const float *const p = parameter, *const g = gradient, *const v = velocity;
    float *const p_out = parameter_out, *const v_out = velocity_out;
    const auto r = static_cast<float>(scalar_of(rate));
    for (std::int64_t i = 0; i < n; ++i) {
      const float next = v[i] * momentum + g[i];
      p_out[i] = p[i] - next * r;
      v_out[i] = next;
    }
  };
}

// Operands: parameter, gradient, velocity, learning rate. v' = momentum v + g + decay p; p' = p - rate v'.
Bound bind_sgd(const Site& site) {
  const std::span<const T> in = site.operands, out = site.results;
  if (are_dense_f32(in[0], in[1], in[2], out[0], out[1]) && number_attribute(site.op, "weight_decay") == 0) return bind_plain_sgd(site);
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

// Operands: parameter, velocity, learning rate.
Bound bind_predict_sgd(const Site& site) {
  return [p = site.operands[0], v = site.operands[1], rate = site.operands[2], out = site.results[0],
          ahead = static_cast<double>(attribute<std::int64_t>(site.op, "ahead"))] { out.copy_(p - v * (scalar_of(rate) * ahead)); };
}

// Operands: parameter, first, second, learning rate, number of the update to come.
Bound bind_predict_adamw(const Site& site) {
  return [p = site.operands[0], m = site.operands[1], v = site.operands[2], rate = site.operands[3],
          next = Place<const std::int64_t>(site.operands[4]), out = site.results[0], beta1 = number_attribute(site.op, "beta1"),
          beta2 = number_attribute(site.op, "beta2"), eps = number_attribute(site.op, "eps"),
          ahead = static_cast<double>(attribute<std::int64_t>(site.op, "ahead"))] {
    const double done = static_cast<double>(*next) - 1;
    if (done < 1) return void(out.copy_(p));
    const T root = (v / (1 - std::pow(beta2, done))).sqrt_().add_(eps);
    out.copy_(p - m / root * (scalar_of(rate) * ahead / (1 - std::pow(beta1, done))));
  };
}

}  // namespace

std::span<const Kernel> optimiser_kernels() {
  static const Kernel all[] = {
      {.name = "adamw", .bind = bind_adamw, .bind_device = adamw_by_aten},
      {.name = "adamw_ahead", .bind = bind_adamw_ahead, .bind_device = adamw_ahead_by_aten},
      {.name = "adamw_validated", .bind = bind_adamw_validated, .bind_device = adamw_validated_by_aten},
      {.name = "predict_adamw", .bind = bind_predict_adamw, .bind_device = predict_adamw_by_aten},
      {.name = "predict_sgd", .bind = bind_predict_sgd, .bind_device = predict_sgd_by_aten},
      {.name = "sgd", .bind = bind_sgd, .bind_device = sgd_by_aten},
  };
  return all;
}

}  // namespace penstock
