// SPDX-License-Identifier: Apache-2.0
#include "torch/device_sum.h"

#include <ATen/TensorOperators.h>

#include "torch/kernel.h"

namespace penstock {

at::Tensor numbers_at(const std::byte* data, std::size_t bytes, DType dtype, c10::Device device) {
  const auto count = static_cast<std::int64_t>(bytes) / byte_size(dtype);
  return tensor_at(const_cast<std::byte*>(data), {dtype, {count}}, device);
}

at::Tensor sum_of_terms(const std::vector<const std::byte*>& terms, std::size_t bytes, DType dtype, c10::Device device) {
  at::Tensor sum;
  for (const std::byte* given : terms) {
    const at::Tensor numbers = numbers_at(given, bytes, dtype, device), term = dtype == DType::bf16 ? numbers.to(at::kFloat) : numbers;
    sum = sum.defined() ? sum + term : term.clone();
  }
  return sum;
}

}  // namespace penstock
