// SPDX-License-Identifier: Apache-2.0
// Matrix products. The op's attribute "kernel" names the library that computes it: "mkl" (ATen's own choice), "onednn" or "penstock";
// without it, ours where it can. Where oneDNN cannot, ATen chooses.
#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/kernel_support.h"

namespace at::native {
// Declared here because libtorch_cpu exports it without a header: result = beta * result + alpha * mat1 * mat2, by oneDNN.
void mkldnn_matmul(const at::Tensor& mat1, const at::Tensor& mat2, const at::Tensor& result, float beta, float alpha);
}  // namespace at::native

namespace penstock {
namespace {

using T = at::Tensor;

// The product out [m, n] (+)= a [m, k] * b [k, n] (+ bias [n]); bias undefined: none.
struct Product {
  T a, b, bias, out;
  bool accumulate = false;
};

template <class E>
bool is_matrix_with_dense_rows_or_columns(const T& x) {
  return x.scalar_type() == kScalarOf<E> && (x.stride(0) == 1 || x.stride(1) == 1);
}

template <class E>
struct PlacedMatrix {
  Place<const E> place;
  std::int64_t row, column;

  operator MatrixView<E>() const { return {place, row, column}; }
};

template <class E>
PlacedMatrix<E> strided(const T& x) {
  return {Place<const E>(x), x.stride(0), x.stride(1)};
}

// Whether our own kernel takes operands of E: strided, a result with dense rows, and a dense bias. Sums are f32.
template <class E>
bool is_of(const Product& p) {
  if (!p.out.is_cpu()) return false;
  const bool into_f32 = p.out.scalar_type() == at::kFloat;
  if (into_f32 ? p.bias.defined() && kScalarOf<E> != at::kFloat : p.accumulate || p.out.scalar_type() != kScalarOf<E>) return false;
  return is_matrix_with_dense_rows_or_columns<E>(p.a) && is_matrix_with_dense_rows_or_columns<E>(p.b) && p.out.stride(1) == 1 &&
         p.a.size(1) > 0 &&
         (!p.bias.defined() ||
          (p.bias.scalar_type() == kScalarOf<E> && p.bias.dim() == 1 && p.bias.size(0) == p.out.size(1) && p.bias.stride(0) == 1));
}

template <class E>
Bound bind_ours(const ElementKernels<E>& own, const Product& p) {
  const auto m = p.out.size(0), n = p.out.size(1), k = p.a.size(1), ldc = p.out.stride(0);
  const auto a = strided<E>(p.a), b = strided<E>(p.b);
  if (p.out.scalar_type() == at::kFloat && !p.bias.defined())
    return [f = own.gemm_f32, m, n, k, a, b, c = mutable_floats(p.out), ldc, accumulate = p.accumulate] {
      f(m, n, k, a, b, c, ldc, accumulate);
    };
  return [f = own.gemm, m, n, k, a, b, c = Place<E>(p.out), ldc, bias = p.bias.defined() ? Place<const E>(p.bias) : nullptr] {
    f(m, n, k, a, b, c, ldc, bias);
  };
}
// No call where our own kernel does not take it.
Bound bind_ours(const Product& p) {
  if (is_of<float>(p)) return bind_ours<float>(vector_kernels(), p);
  if (is_of<Bf16>(p)) return bind_ours<Bf16>(vector_kernels().bf16, p);
  return {};
}

// oneDNN's products refuse processors without the instructions that they ask for, in f32 too.
bool takes_onednn() {
  static const bool takes = [] {
    try {
      const T one = at::ones({1, 1});
      T out = at::empty({1, 1});
      at::native::mkldnn_matmul(one, one, out, 0.0f, 1.0f);
      return true;
    } catch (const c10::Error&) {
      return false;
    }
  }();
  return takes;
}

Bound bind_onednn(const Product& p) {
  return [p] {
    if (p.bias.defined()) p.out.copy_(p.bias.expand(p.out.sizes()));
    at::native::mkldnn_matmul(p.a, p.b, p.out, p.accumulate || p.bias.defined() ? 1.0f : 0.0f, 1.0f);
  };
}

Bound bind_mkl(Product p) {
  // ATen has no product of bf16 into f32.
  if (p.out.scalar_type() != p.a.scalar_type())
    return [p] { deliver(p.out, at::mm(p.a.to(p.out.scalar_type()), p.b.to(p.out.scalar_type())), p.accumulate); };
  if (p.bias.defined()) return [p]() mutable { at::addmm_out(p.out, p.bias, p.a, p.b); };
  if (p.accumulate) return [p]() mutable { at::addmm_out(p.out, p.out, p.a, p.b); };
  return [p]() mutable { at::mm_out(p.out, p.a, p.b); };
}

Bound bind_product(const Op& op, Product p) {
  // A result with dense columns is computed as the transposed product.
  if (p.out.stride(1) != 1 && p.out.stride(0) == 1 && !p.bias.defined()) {
    const T a = p.a;
    p = {p.b.t(), a.t(), {}, p.out.t(), p.accumulate};
  }
  const std::string kernel = attribute_or(op, "kernel", std::string("penstock"));
  if (kernel != "penstock" && kernel != "onednn" && kernel != "mkl")
    throw Error(concat("op ", quote(op.name), ": unknown kernel ", quote(kernel)), {"known: \"mkl\", \"onednn\", \"penstock\""});
  Bound ours = bind_ours(p);
  if (kernel == "penstock" && ours) return ours;
  if (kernel == "onednn" && ours && p.out.scalar_type() == p.a.scalar_type() && takes_onednn()) return bind_onednn(p);
  return bind_mkl(p);
}

Bound bind_mm(const Site& site) {
  return bind_product(site.op, {site.operands[0], site.operands[1], {}, site.results[0], (site.accumulate & 1) != 0});
}

Bound bind_addmm(const Site& site) {
  return bind_product(site.op, {site.operands[1], site.operands[2], site.operands[0], site.results[0]});
}

Bound bind_linear(const Site& site) {
  const T &x = site.operands[0], &weight = site.operands[1], &out = site.results[0];
  const T bias = site.operands.size() == 3 ? site.operands[2] : T();
  if (x.is_contiguous() && out.is_contiguous() && x.numel() > 0)
    return bind_product(site.op, {x.view({-1, x.size(-1)}), weight.t(), bias, out.view({-1, out.size(-1)})});
  return [x, weight, bias, o = T(out)]() mutable { at::linear_out(o, x, weight, bias.defined() ? std::optional<T>(bias) : std::nullopt); };
}

// Runs our own kernel for each matrix of the batch.
Bound bind_bmm(const Site& site) {
  const T &a = site.operands[0], &b = site.operands[1], &out = site.results[0];
  std::vector<Bound> calls;
  for (std::int64_t i = 0; i < out.size(0); ++i) {
    const Product p{a[i], b[i], {}, out[i]};
    calls.push_back(bind_ours(p));
    if (!calls.back()) return binary(site, [](T& o, const T& x, const T& y) { at::bmm_out(o, x, y); });
  }
  return [calls] {
    for (const Bound& call : calls) call();
  };
}

Bound bind_matmul(const Site& site) {
  const T &a = site.operands[0], &b = site.operands[1], &out = site.results[0];
  if (b.dim() == 2 && a.is_contiguous() && out.is_contiguous() && a.numel() > 0)
    return bind_product(site.op, {a.view({-1, a.size(-1)}), b, {}, out.view({-1, out.size(-1)})});
  return binary(site, [](T& o, const T& x, const T& y) { at::matmul_out(o, x, y); });
}

}  // namespace

std::span<const Kernel> product_kernels() {
  static const Kernel all[] = {
      {.name = "linear", .bind = bind_linear}, {.name = "mm", .bind = bind_mm, .accumulates = 1, .widens = true},
      {.name = "bmm", .bind = bind_bmm},       {.name = "addmm", .bind = bind_addmm},
      {.name = "matmul", .bind = bind_matmul},
  };
  return all;
}

}  // namespace penstock
