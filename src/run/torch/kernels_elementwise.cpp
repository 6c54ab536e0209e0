// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/abs.h>
#include <ATen/ops/add.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/div.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/where.h>

#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

// One of our own loops over operands of the result's shape; no call where they are not.
template <class Pick>
Bound bind_alike(const Site& site, Pick pick) {
  if (site.operands.size() != 2) return {};
  const T &a = site.operands[0], &b = site.operands[1], &out = site.results[0];
  if (a.sizes() != out.sizes() || b.sizes() != out.sizes()) return {};
  return bind_loop(pick, std::tie(a, b), out, out.numel());
}

Bound bind_bias_add(const Site& site) {
  if (site.operands.size() != 2) return {};
  const T &x = site.operands[0], &bias = site.operands[1], &out = site.results[0];
  if (x.sizes() != out.sizes() || bias.dim() != 1 || bias.size(0) != out.size(-1)) return {};
  return bind_loop([](const auto& loops) { return loops.add_bias; }, std::tie(x, bias), out, rows_of(out));
}

Bound bind_add(const Site& site) {
  if (Bound own = bind_alike(site, [](const auto& loops) { return loops.add; })) return own;
  if (Bound own = bind_bias_add(site)) return own;
  return binary(site, [](T& out, const T& a, const T& b) { at::add_out(out, a, b); });
}

Bound bind_mul(const Site& site) {
  if (Bound own = bind_alike(site, [](const auto& loops) { return loops.mul; })) return own;
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.scale, x = Place<const E>(site.operands[0]), factor = static_cast<float>(number_attribute(site.op, "other")),
            out = Place<E>(site.results[0]), n = site.results[0].numel()] { f(x, factor, out, n); };
  };
  if (site.operands.size() == 1)
    if (Bound own = bind_dense(bind, site.operands[0], site.results[0])) return own;
  return binary(site, [](T& out, const T& a, const T& b) { at::mul_out(out, a, b); });
}

Bound bind_pow(const Site& site) {
  return unary(site, [e = at::Scalar(number_attribute(site.op, "exponent"))](T& out, const T& x) { at::pow_out(out, x, e); });
}

Bound bind_where(const Site& site) {
  return
      [c = site.operands[0], a = site.operands[1], b = site.operands[2], out = site.results[0]]() mutable { at::where_out(out, c, a, b); };
}

Bound bind_isfinite(const Site& site) {
  return unary(site, [](T& out, const T& x) { out.copy_(at::isfinite(x)); });
}

}  // namespace

std::span<const Kernel> elementwise_kernels() {
  static const Kernel all[] = {
      {.name = "add", .bind = bind_add},
      {.name = "mul", .bind = bind_mul},
      {.name = "pow", .bind = bind_pow},
      {.name = "where", .bind = bind_where},
      {.name = "isfinite", .bind = bind_isfinite},
      {.name = "sub", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::sub_out(o, a, b); }); }},
      {.name = "div", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::div_out(o, a, b); }); }},
      {.name = "maximum", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::maximum_out(o, a, b); }); }},
      {.name = "minimum", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::minimum_out(o, a, b); }); }},
      {.name = "eq", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::eq_out(o, a, b); }); }},
      {.name = "ne", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::ne_out(o, a, b); }); }},
      {.name = "lt", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::lt_out(o, a, b); }); }},
      {.name = "le", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::le_out(o, a, b); }); }},
      {.name = "gt", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::gt_out(o, a, b); }); }},
      {.name = "ge", .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::ge_out(o, a, b); }); }},
      {.name = "logical_and",
       .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::logical_and_out(o, a, b); }); }},
      {.name = "logical_or",
       .bind = [](const Site& s) { return binary(s, [](T& o, const T& a, const T& b) { at::logical_or_out(o, a, b); }); }},
      {.name = "tanh_backward",
       .bind = [](const Site& s) { return binary(s, [](T& o, const T& dy, const T& y) { at::tanh_backward_out(o, dy, y); }); }},
      {.name = "sigmoid_backward",
       .bind = [](const Site& s) { return binary(s, [](T& o, const T& dy, const T& y) { at::sigmoid_backward_out(o, dy, y); }); }},
      {.name = "logical_not", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::logical_not_out(o, x); }); }},
      {.name = "neg", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::neg_out(o, x); }); }},
      {.name = "abs", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::abs_out(o, x); }); }},
      {.name = "sign", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::sign_out(o, x); }); }},
      {.name = "exp", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::exp_out(o, x); }); }},
      {.name = "log", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::log_out(o, x); }); }},
      {.name = "sqrt", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::sqrt_out(o, x); }); }},
      {.name = "rsqrt", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::rsqrt_out(o, x); }); }},
      {.name = "sin", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::sin_out(o, x); }); }},
      {.name = "cos", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::cos_out(o, x); }); }},
      {.name = "tanh", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::tanh_out(o, x); }); }},
      {.name = "sigmoid", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::sigmoid_out(o, x); }); }},
      {.name = "erf", .bind = [](const Site& s) { return unary(s, [](T& o, const T& x) { at::erf_out(o, x); }); }},
  };
  return all;
}

}  // namespace penstock
