// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/amax.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/sum.h>

#include <algorithm>

#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;
using Dims = std::vector<std::int64_t>;

Dims dims_of(const Site& site) {
  return dims_attribute(site.op, {}, static_cast<std::size_t>(site.operands[0].dim()));
}

// Whether these are the leading dims, so that the reduction is a sum of rows.
bool are_leading(const Dims& dims) {
  for (std::size_t i = 0; i < dims.size(); ++i)
    if (dims[i] != static_cast<std::int64_t>(i)) return false;
  return !dims.empty();
}

Bound bind_sum(const Site& site) {
  const T &x = site.operands[0], &out = site.results[0];
  const Dims dims = dims_of(site);
  const bool keepdim = attribute_or(site.op, "keepdim", false), accumulate = site.accumulate & 1;
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    return [f = own.column_sum, p = Place<const E>(x), q = mutable_floats(out), shape = NormShape{x.numel() / out.numel(), out.numel()},
            accumulate] { f(p, q, shape, accumulate); };
  };
  if (is_dense_f32(out) && are_leading(dims) && out.numel() > 1)
    if (Bound own = bind_dense(bind, x)) return own;
  if (accumulate) return [x, out, dims, keepdim] { out.add_(at::sum(x, dims, keepdim, out.scalar_type())); };
  return [x, o = T(out), dims, keepdim]() mutable { at::sum_out(o, x, dims, keepdim); };
}

Bound bind_mean(const Site& site) {
  return unary(site, [dims = dims_of(site), keepdim = attribute_or(site.op, "keepdim", false)](T& out, const T& x) {
    at::mean_out(out, x, dims, keepdim);
  });
}

Bound bind_amax(const Site& site) {
  return unary(site, [dims = dims_of(site), keepdim = attribute_or(site.op, "keepdim", false)](T& out, const T& x) {
    at::amax_out(out, x, dims, keepdim);
  });
}

Bound bind_cumsum(const Site& site) {
  return unary(site,
               [dim = attribute<std::int64_t>(site.op, "dim")](T& out, const T& x) { at::cumsum_out(out, x, dim, out.scalar_type()); });
}

// Adds from left to right. The result may lie over any operand.
Bound bind_add_n(const Site& site) {
  std::vector<T> parts(site.operands.begin(), site.operands.end());
  const T out = site.results[0];
  const bool accumulate = site.accumulate & 1;
  if (accumulate) parts.insert(parts.begin(), out);
  const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
    if (!std::ranges::all_of(parts, is_dense<E>)) return {};
    return [f = own.add_n, parts, pointers = std::vector<const E*>(parts.size()), q = Place<E>(out), n = out.numel()]() mutable {
      for (std::size_t i = 0; i < parts.size(); ++i) pointers[i] = Place<const E>(parts[i]);
      f(pointers.data(), pointers.size(), q, n);
    };
  };
  if (Bound own = bind_dense(bind, out)) return own;
  return [parts, out] {
    T sum = parts[0].clone();
    for (std::size_t i = 1; i < parts.size(); ++i) sum.add_(parts[i]);
    out.copy_(sum);
  };
}

}  // namespace

std::span<const Kernel> reduction_kernels() {
  static const Kernel all[] = {
      {.name = "sum", .bind = bind_sum, .accumulates = 1, .widens = true},
      {.name = "mean", .bind = bind_mean},
      {.name = "amax", .bind = bind_amax},
      {.name = "cumsum", .bind = bind_cumsum},
      {.name = "add_n", .bind = bind_add_n, .accumulates = 1},
  };
  return all;
}

}  // namespace penstock
