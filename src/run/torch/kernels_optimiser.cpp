// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <type_traits>
#include <vector>

#include "ops/optimiser.h"
#include "torch/adamw_numbers.h"
#include "torch/aten_kernels.h"
#include "torch/device_kernels.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

double scalar_of(const T& x) {
  return x.scalar_type() == at::kDouble  ? *data_of<const double>(x)
         : x.scalar_type() == at::kFloat ? static_cast<double>(*data_of<const float>(x))
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
      data[i] = data_of<double>(wide[i]);
    }
    adamw_loop<double>(a, scalar_of(in[4]), static_cast<double>(*step))(data[0], data[1], data[2], data[3], data[0], data[2], data[3],
                                                                        in[0].numel());
    out[0].copy_(wide[0]);
    out[1].copy_(wide[2]);
    out[2].copy_(wide[3]);
  };
}

// --- updates in two halves (ops/optimiser.h)

// Elements per block, whose operands fit into the first cache together; a multiple of every vector's length.
constexpr std::int64_t kPart = 1024;

// The update of a half, and what the half has beside it.
struct Half {
  Op update;
  std::vector<T> operands;  // the update's
  std::vector<T> results;   // the update's, and where the half keeps them what they were
  std::size_t tensors;      // the parameter and what is kept of it
};

Half half_of(const Site& site) {
  const std::size_t tensors = site.op.results.size() / (is_update_ahead(site.op) ? 2 : 1);
  Half out{update_in(site.op), {}, {site.results.begin(), site.results.end()}, tensors};
  const auto begin = site.operands.begin() + (is_update_ahead(site.op) ? 0 : static_cast<std::ptrdiff_t>(tensors));
  out.operands.assign(begin, begin + std::ssize(out.update.operands));
  return out;
}

// Among the operands of an update, the one that its result updates.
std::size_t operand_of(std::size_t result) {
  return result == 0 ? 0 : result + 1;
}

// The update's own call on the first `count` places of each row of `blocks`, a row for each operand that is no scalar, in place.
Bound update_in_place(const Graph& graph, const Half& half, const T& blocks, std::int64_t count) {
  std::vector<T> in = half.operands, out;
  for (std::size_t c = 0; c <= half.tensors; ++c) in[c] = blocks.select(0, static_cast<std::int64_t>(c)).narrow(0, 0, count);
  for (std::size_t r = 0; r < half.tensors; ++r) out.push_back(in[operand_of(r)]);
  return find_kernel(half.update.name)->bind({graph, half.update, in, out});
}

// A call of the update with gradient*factor, block by block. A block is read as a whole before any of it is written, so every result may
// lie over any operand.
template <class Number>
std::function<void(Number factor)> scaled_update(const Graph& graph, Half half) {
  const T blocks = at::zeros({static_cast<std::int64_t>(half.tensors) + 1, kPart}, half.operands[0].options());
  const std::int64_t n = half.operands[0].numel();
  return [whole = update_in_place(graph, half, blocks, kPart), last = update_in_place(graph, half, blocks, n % kPart), half, blocks,
          n](Number factor) {
    std::vector<T> dense;
    for (std::size_t c = 0; c <= half.tensors; ++c) dense.push_back(half.operands[c].contiguous());
    const auto row = [&](std::size_t c) { return data_of<Number>(blocks) + c * kPart; };
    const auto write = [&](std::size_t of, std::size_t result, std::int64_t i, std::int64_t count) {
      std::copy_n(row(operand_of(of)), count, data_of<Number>(half.results[result]) + i);
    };
    for (std::int64_t i = 0; i < n; i += kPart) {
      const std::int64_t count = std::min(kPart, n - i);
      for (std::size_t c = 0; c < dense.size(); ++c) std::copy_n(data_of<const Number>(dense[c]) + i, count, row(c));
      for (std::int64_t k = 0; k < count; ++k) row(1)[k] *= factor;
      for (std::size_t r = half.tensors; r < half.results.size(); ++r) write(r - half.tensors, r, i, count);
      (count == kPart ? whole : last)();
      for (std::size_t r = 0; r < half.tensors; ++r) write(r, r, i, count);
    }
  };
}

template <class Number>
Bound bind_ahead(const Site& site) {
  return [update = scaled_update<Number>(site.graph, half_of(site)), assumed = Place<const Number>(site.operands.back())] {
    update(*assumed);
  };
}

// A factor that is NaN counts as differing from the assumed one. Where the results lie elsewhere than the update, they are computed anew:
// the same bits.
template <class Number>
Bound bind_validated(const Site& site) {
  bool in_place = true;
  for (std::size_t i = 0; i < site.results.size(); ++i) in_place = in_place && site.results[i].data_ptr() == site.operands[i].data_ptr();
  return [update = scaled_update<Number>(site.graph, half_of(site)), assumed = Place<const Number>(site.operands[site.operands.size() - 2]),
          factor = Place<const Number>(site.operands.back()), in_place] {
    if (!in_place || *factor != *assumed) update(*factor);
  };
}

Bound bind_half_host(const Site& site) {
  return by_scalar(site.operands[0], [&]<class Number>(Number) {
    return is_update_ahead(site.op) ? bind_ahead<Number>(site) : bind_validated<Number>(site);
  });
}

// The call of the update's own kernel for halves, where it has one that takes these operands, or what is put together of the update.
Bound bind_half_device(const Site& site) {
  const Kernel& kernel = *find_kernel(update_in(site.op).name);
  Bound own = kernel.bind_half ? kernel.bind_half(site) : Bound();
  return own ? own : half_by_aten(site);
}

// --- sgd, and predictions

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
  const bool is_plain = are_dense_f32(in[0], in[1], in[2], out[0], out[1]) && number_attribute(site.op, "weight_decay") == 0;
  return is_plain ? bind_plain_sgd(site) : sgd_by_aten(site);
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
      {.name = "adamw", .bind = bind_adamw, .bind_device = own_or<adamw_by_kernel, adamw_by_aten>, .bind_half = adamw_half_by_kernel},
      {.name = "predict_adamw", .bind = bind_predict_adamw, .bind_device = predict_adamw_by_aten},
      {.name = "predict_sgd", .bind = predict_sgd_by_aten},
      {.name = "sgd", .bind = bind_sgd, .bind_device = sgd_by_aten},
      {.name = "update_ahead", .bind = bind_half_host, .bind_device = bind_half_device},
      {.name = "update_validated", .bind = bind_half_host, .bind_device = bind_half_device},
  };
  return all;
}

}  // namespace penstock
