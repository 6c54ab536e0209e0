// The optimiser as graph code: rate, norm, clipping.
#include <algorithm>
#include <numbers>

#include "trace/step.h"

namespace penstock {

Tensor learning_rate_schedule(Tensor step, const OptimiserOptions& options) {
  const Tensor t = to(step, DType::f32);
  const int decline = std::max(1, options.steps - options.warmup);
  Tensor progress = (t - options.warmup) / decline;
  progress = minimum(maximum(progress, full_like(progress, 0)), full_like(progress, 1));
  const double last = options.final_fraction;
  const Tensor falling = options.learning_rate * ((1 - last) / 2 * (cos(progress * std::numbers::pi) + 1) + last);
  if (options.warmup <= 0) return falling;
  return where(le(t, options.warmup), t * (options.learning_rate / options.warmup), falling);
}

Tensor global_norm(const Parameters& gradients) {
  std::vector<Tensor> squares;
  for (const auto& [name, gradient] : gradients.entries()) squares.push_back(sum(gradient * gradient));
  return sqrt(add_n(squares));
}

Parameters scale_gradients(const Parameters& gradients, Tensor factor) {
  Parameters scaled;
  for (const auto& [name, gradient] : gradients.entries()) scaled.set(name, gradient * factor);
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
