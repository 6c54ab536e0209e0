#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>

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
Tensors adamw(const Adamw& a, const T* in, const T& factor = {}) {
  const T p = widened(in[0]), m = widened(in[2]), v = widened(in[3]), rate = number_on_device(in[4]), step = number_on_device(in[5]);
  const T g = factor.defined() ? widened(in[1]) * factor : widened(in[1]);
  const T size = rate / (1 - at::pow(at::Scalar(a.beta1), step)), root = (1 - at::pow(at::Scalar(a.beta2), step)).sqrt();
  const T first = m * a.beta1 + g * (1 - a.beta1), second = v * a.beta2 + g * g * (1 - a.beta2);
  return {p * (1 - rate * a.weight_decay) - first * size / (second.sqrt() / root + a.eps), first, second};
}

}  // namespace

Bound adamw_by_aten(const Site& site) {
  return composed(site, [a = adamw_of(site.op)](const Tensors& in) { return adamw(a, in.data()); });
}

// Operands: adamw's, assumed. Results: adamw's, then the old values.
Bound adamw_ahead_by_aten(const Site& site) {
  return composed(site, [a = adamw_of(site.op)](const Tensors& in) {
    Tensors out = adamw(a, in.data(), in[6]);
    for (const std::size_t old : {0u, 2u, 3u}) out.push_back(in[old].clone());
    return out;
  });
}

// Operands: parameter, first, second, adamw's with the kept values, assumed, factor. A factor that is NaN differs from the assumed one.
Bound adamw_validated_by_aten(const Site& site) {
  return composed(site, [a = adamw_of(site.op)](const Tensors& in) {
    const T differs = in[10].ne(in[9]);
    Tensors out = adamw(a, in.data() + 3, in[10]);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = at::where(differs, out[i], in[i]);
    return out;
  });
}

// Operands: parameter, gradient, velocity, learning rate.
Bound sgd_by_aten(const Site& site) {
  return composed(site,
                  [momentum = number_attribute(site.op, "momentum"), decay = number_attribute(site.op, "weight_decay")](const Tensors& in) {
                    T velocity = in[2] * momentum + in[1];
                    if (decay != 0) velocity.add_(in[0], decay);
                    return Tensors{in[0] - velocity * number_on_device(in[3]), velocity};
                  });
}

// Operands: parameter, velocity, learning rate.
Bound predict_sgd_by_aten(const Site& site) {
  return composed(site, [ahead = static_cast<double>(attribute<std::int64_t>(site.op, "ahead"))](const Tensors& in) {
    return Tensors{in[0] - in[1] * (number_on_device(in[2]) * ahead)};
  });
}

// Operands: parameter, first, second, learning rate, number of the update to come.
Bound predict_adamw_by_aten(const Site& site) {
  return composed(
      site, [beta1 = number_attribute(site.op, "beta1"), beta2 = number_attribute(site.op, "beta2"), eps = number_attribute(site.op, "eps"),
             ahead = static_cast<double>(attribute<std::int64_t>(site.op, "ahead"))](const Tensors& in) {
        const T done = number_on_device(in[4]) - 1;
        const T root = (in[2] / (1 - at::pow(at::Scalar(beta2), done))).sqrt().add_(eps);
        const T next = in[0] - in[1] / root * (number_on_device(in[3]) * ahead / (1 - at::pow(at::Scalar(beta1), done)));
        return Tensors{at::where(done.lt(1), in[0], next)};
      });
}

}  // namespace penstock
