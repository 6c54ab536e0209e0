// SPDX-License-Identifier: Apache-2.0
// Helpers that the kernels share.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/scalar_tensor.h>

#include <cstddef>
#include <tuple>

#include "ops/infer.h"
#include "torch/kernel.h"
#include "torch/vector.h"

namespace penstock {

// The dtype of our own loops' T.
template <class T>
inline constexpr at::ScalarType kScalarOf = at::kFloat;
template <>
inline constexpr at::ScalarType kScalarOf<Bf16> = at::kBFloat16;

// Whether the tensor is the host's, row-major and without gaps, as most of our own loops want it.
template <class T>
bool is_dense(const at::Tensor& x) {
  return x.is_cpu() && x.scalar_type() == kScalarOf<T> && x.is_contiguous();
}
inline bool is_dense_f32(const at::Tensor& x) {
  return is_dense<float>(x);
}
template <class... Tensors>
bool are_dense_f32(const Tensors&... tensors) {
  return (is_dense_f32(tensors) && ...);
}
// The elements of a dense tensor; null where it is undefined.
template <class Scalar>
Scalar* data_of(const at::Tensor& x) {
  return x.defined() ? static_cast<Scalar*>(x.data_ptr()) : nullptr;
}

// Where a tensor's elements lie when it is asked: a call that keeps a place instead of a pointer may be made again after its tensors were
// moved (torch/bind.h). No tensor: null.
template <class Scalar>
class Place {
 public:
  Place(std::nullptr_t) {}
  explicit Place(const at::Tensor& tensor) : tensor_(tensor) {}
  operator Scalar*() const { return data_of<Scalar>(tensor_); }

 private:
  at::Tensor tensor_;
};
inline Place<const float> floats(const at::Tensor& x) {
  return Place<const float>(x);
}
inline Place<float> mutable_floats(const at::Tensor& x) {
  return Place<float>(x);
}
// bind(loops) with our own loops for the tensors' dtype; no call where they are not dense, or of other or different dtypes.
template <class Bind, class... Tensors>
Bound bind_dense(Bind bind, const Tensors&... tensors) {
  if ((is_dense<float>(tensors) && ...)) return bind(static_cast<const ElementKernels<float>&>(vector_kernels()));
  if ((is_dense<Bf16>(tensors) && ...)) return bind(vector_kernels().bf16);
  return {};
}
// The call of one of our own loops, loop(elements of the operands.., of the result, rest..): `pick` gives it of those for the tensors'
// dtype. No call where bind_dense makes none.
template <class Pick, class... Operands, class... Rest>
Bound bind_loop(Pick pick, std::tuple<const Operands&...> operands, const at::Tensor& result, Rest... rest) {
  return std::apply(
      [&](const auto&... x) {
        const auto bind = [&]<class E>(const ElementKernels<E>& own) -> Bound {
          return [loop = pick(own), to = Place<E>(result), rest..., ... from = Place<const E>(x)] { loop(from..., to, rest...); };
        };
        return bind_dense(bind, x..., result);
      },
      operands);
}

// A tensor as rows of its last dim.
inline NormShape rows_of(const at::Tensor& x) {
  const std::int64_t width = x.size(-1);
  return {width == 0 ? 0 : x.numel() / width, width};
}
inline bool is_low_precision(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}
inline at::Tensor in_f32(const at::Tensor& x) {
  return x.to(at::kFloat);
}

// The tensor in the dtype to compute in: low precision is computed in f32, in which sums are kept, too.
inline at::Tensor widened(const at::Tensor& x) {
  return is_low_precision(x) ? in_f32(x) : x;
}
// The same, dense.
inline at::Tensor widened_dense(const at::Tensor& x) {
  return widened(x).contiguous();
}

// f(Scalar{}) with the type of the tensor's elements, double or float.
template <class F>
auto by_scalar(const at::Tensor& x, F f) {
  return x.scalar_type() == at::kDouble ? f(double{}) : f(float{});
}

// Writes `value` into the result, or adds it where the site asks for that.
inline void deliver(const at::Tensor& result, const at::Tensor& value, bool accumulate) {
  if (accumulate)
    result.add_(value);
  else
    result.copy_(value);
}

// Operand 1 or, where there is none, the number "other" as a scalar of operand 0's dtype.
inline at::Tensor second_operand(const Site& site) {
  if (site.operands.size() == 2) return site.operands[1];
  return at::scalar_tensor(number_attribute(site.op, "other"), at::TensorOptions(site.operands[0].scalar_type()));
}

template <class F>
Bound unary(const Site& site, F f) {
  return [f, x = site.operands[0], out = site.results[0]]() mutable { f(out, x); };
}
template <class F>
Bound binary(const Site& site, F f) {
  return [f, a = site.operands[0], b = second_operand(site), out = site.results[0]]() mutable { f(out, a, b); };
}

}  // namespace penstock
