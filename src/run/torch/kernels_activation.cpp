// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

Bound bind_gelu(const Site& site) {
  const T &x = site.operands[0], &out = site.results[0];
  const std::string approximate = attribute_or(site.op, "approximate", std::string("none"));
  const auto loop = [](const auto& loops) { return loops.gelu; };
  if (Bound own = bind_loop(loop, std::tie(x), out, x.numel(), approximate == "tanh")) return own;
  return unary(site, [approximate](T& o, const T& a) { at::gelu_out(o, a, approximate); });
}

Bound bind_gelu_backward(const Site& site) {
  const T &dy = site.operands[0], &x = site.operands[1], &dx = site.results[0];
  const std::string approximate = attribute_or(site.op, "approximate", std::string("none"));
  const auto loop = [](const auto& loops) { return loops.gelu_backward; };
  if (Bound own = bind_loop(loop, std::tie(dy, x), dx, x.numel(), approximate == "tanh")) return own;
  return binary(site, [approximate](T& o, const T& d, const T& a) { at::gelu_backward_out(o, d, a, approximate); });
}

Bound bind_silu(const Site& site) {
  const T &x = site.operands[0], &out = site.results[0];
  if (Bound own = bind_loop([](const auto& loops) { return loops.silu; }, std::tie(x), out, x.numel())) return own;
  return unary(site, [](T& o, const T& a) { at::silu_out(o, a); });
}

Bound bind_silu_backward(const Site& site) {
  const T &dy = site.operands[0], &x = site.operands[1], &dx = site.results[0];
  if (Bound own = bind_loop([](const auto& loops) { return loops.silu_backward; }, std::tie(dy, x), dx, x.numel())) return own;
  return binary(site, [](T& o, const T& d, const T& a) { at::silu_backward_out(o, d, a); });
}

Bound bind_threshold_backward(const Site& site) {
  return binary(site, [threshold = at::Scalar(number_attribute(site.op, "threshold"))](T& o, const T& d, const T& x) {
    at::threshold_backward_out(o, d, x, threshold);
  });
}

}  // namespace

std::span<const Kernel> activation_kernels() {
  static const Kernel all[] = {
      {.name = "relu", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::clamp_min_out(o, x, 0); }); }},
      {.name = "threshold_backward", .bind = bind_threshold_backward},
      {.name = "silu", .bind = bind_silu},
      {.name = "silu_backward", .bind = bind_silu_backward},
      {.name = "gelu", .bind = bind_gelu},
      {.name = "gelu_backward", .bind = bind_gelu_backward},
  };
  return all;
}

}  // namespace penstock
