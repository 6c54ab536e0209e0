// SPDX-License-Identifier: Apache-2.0
#include "torch/vector_body.inl"

namespace penstock {

const VectorKernels& avx512_bf16_kernels() {
  static const VectorKernels kernels = table("avx512_bf16");
  return kernels;
}

}  // namespace penstock
