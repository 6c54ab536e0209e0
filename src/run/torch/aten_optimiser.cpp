// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty_like.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

#include "ops/optimiser.h"
#include "torch/adamw_numbers.h"
#include "torch/aten_composed.h"
#include "torch/aten_kernels.h"

namespace penstock {
namespace {

using T = at::Tensor;

// In f64, as 1 - beta^step loses digits where beta is next to one.
T number_on_device(const T& scalar) {
  return scalar.to(at::kDouble).reshape({});
}

// The update by gradient, the next first and second moment. Operands: parameter, gradient, first, second, learning rate, step.
AtTensors adamw(const Adamw& a, const AtTensors& in) {
  const T p = widened(in[0]), g = widened(in[1]), m = widened(in[2]), v = widened(in[3]), rate = number_on_device(in[4]),
          step = number_on_device(in[5]);
  const T size = rate / (1 - at::pow(at::Scalar(a.beta1), step)), root = (1 - at::pow(at::Scalar(a.beta2), step)).sqrt();
  const T first = m * a.beta1 + g * (1 - a.beta1), second = v * a.beta2 + g * g * (1 - a.beta2);
  return {p * (1 - rate * a.weight_decay) - first * size / (second.sqrt() / root + a.eps), first, second};
}

}  // namespace

Bound adamw_by_aten(const Site& site) {
  return composed(site, [a = adamw_of(site.op)](const AtTensors& in) { return adamw(a, in); });
}

// Operands: parameter, gradient, velocity, learning rate.
Bound sgd_by_aten(const Site& site) {
  return composed(
      site, [momentum = number_attribute(site.op, "momentum"), decay = number_attribute(site.op, "weight_decay")](const AtTensors& in) {
        T velocity = in[2] * momentum + in[1];
        if (decay != 0) velocity.add_(in[0], decay);
        return AtTensors{in[0] - velocity * number_on_device(in[3]).to(velocity.scalar_type()), velocity};
      });
}

// Returns what an update makes with gradient*factor, in new tensors.
AtTensors scaled(const Op& update, std::span<const T> operands, const T& factor, std::size_t tensors) {
  AtTensors in(operands.begin(), operands.end()), out;
  in[1] = in[1] * factor;
  for (std::size_t r = 0; r < tensors; ++r) out.push_back(at::empty_like(in[0]));
  const Kernel& kernel = *find_kernel(update.name);
  const Graph none;
  (kernel.bind_device ? kernel.bind_device : kernel.bind)({none, update, in, out})();
  return out;
}

// A factor that is NaN differs from the assumed one.
Bound half_by_aten(const Site& site) {
  const bool is_first = is_update_ahead(site.op);
  return composed(site,
                  [update = update_in(site.op), is_first, tensors = site.op.results.size() / (is_first ? 2 : 1)](const AtTensors& in) {
                    const std::span<const T> operands = std::span(in).subspan(is_first ? 0 : tensors, update.operands.size());
                    AtTensors out = scaled(update, operands, in.back(), tensors);
                    if (is_first) {
                      for (std::size_t r = 0; r < tensors; ++r) out.push_back(operands[r == 0 ? 0 : r + 1].clone());
                      return out;
                    }
                    const T differs = in.back().ne(in[in.size() - 2]);
                    for (std::size_t r = 0; r < tensors; ++r) out[r] = at::where(differs, out[r], in[r]);
                    return out;
                  });
}

// Operands: parameter, velocity, learning rate.
Bound predict_sgd_by_aten(const Site& site) {
  return composed(site, [ahead = static_cast<double>(attribute<std::int64_t>(site.op, "ahead"))](const AtTensors& in) {
    return AtTensors{in[0] - in[1] * (number_on_device(in[2]) * ahead).to(in[1].scalar_type())};
  });
}

// Operands: parameter, first, second, learning rate, number of the update to come.
Bound predict_adamw_by_aten(const Site& site) {
  return composed(
      site, [beta1 = number_attribute(site.op, "beta1"), beta2 = number_attribute(site.op, "beta2"), eps = number_attribute(site.op, "eps"),
             ahead = static_cast<double>(attribute<std::int64_t>(site.op, "ahead"))](const AtTensors& in) {
        const T done = number_on_device(in[4]) - 1;
        const T root = (in[2] / (1 - at::pow(at::Scalar(beta2), done))).sqrt().add_(eps);
        const T next = in[0] - in[1] / root * (number_on_device(in[3]) * ahead / (1 - at::pow(at::Scalar(beta1), done)));
        return AtTensors{at::where(done.lt(1), in[0], next)};
      });
}

}  // namespace penstock
