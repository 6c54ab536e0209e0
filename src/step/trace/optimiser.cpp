// SPDX-License-Identifier: Apache-2.0
// The optimiser as graph code: learning rate, gradient norm, clipping.
#include <algorithm>

#include "penstock/step.h"
#include "trace/decays.h"

namespace penstock {

namespace {

// The step after which the learning rate falls.
int begin_of_decay(const OptimiserOptions& options) {
  if (options.decay_steps > 0) return std::max(options.warmup, options.steps - options.decay_steps);
  return find_decay(options.decay).late ? std::max(options.warmup, options.steps - std::max(1, options.steps / 10)) : options.warmup;
}

// The factor of the learning rate at step t: it falls from 1 to final_fraction.
Tensor decay_factor(Tensor t, const OptimiserOptions& options) {
  const int begin = begin_of_decay(options);
  Tensor progress = (t - begin) / std::max(1, options.steps - begin);
  progress = minimum(maximum(progress, full_like(progress, 0)), full_like(progress, 1));
  return find_decay(options.decay).left(progress, options.final_fraction);
}

}  // namespace

Tensor learning_rate_schedule(Tensor step, const OptimiserOptions& options) {
  const Tensor t = to(step, DType::f32);
  const bool falls = find_decay(options.decay).falls();
  const Tensor falling = falls ? options.learning_rate * decay_factor(t, options) : full_like(t, options.learning_rate);
  if (options.warmup <= 0) return falling;
  return where(le(t, options.warmup), t * (options.learning_rate / options.warmup), falling);
}

Tensor global_norm(const Parameters& gradients) {
  DType widest = gradients.entries().front().second.dtype();
  for (const auto& [name, gradient] : gradients.entries())
    if (byte_size(gradient.dtype()) > byte_size(widest)) widest = gradient.dtype();
  std::vector<Tensor> squares;
  for (const auto& [name, gradient] : gradients.entries()) squares.push_back(to(sum(gradient * gradient), widest));
  return sqrt(add_n(squares));
}

Parameters scale_gradients(const Parameters& gradients, Tensor factor) {
  Parameters scaled;
  for (const auto& [name, gradient] : gradients.entries()) scaled.set(name, gradient * to(factor, gradient.dtype()));
  return scaled;
}

Tensor clip_factor(Tensor norm, double limit) {
  const Tensor most = full_like(norm, limit);
  return most / maximum(norm, most);
}

Parameters clip_by_global_norm(const Parameters& gradients, Tensor norm, double limit) {
  return scale_gradients(gradients, clip_factor(norm, limit));
}

}  // namespace penstock
