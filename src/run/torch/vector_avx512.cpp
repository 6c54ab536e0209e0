// SPDX-License-Identifier: Apache-2.0
#include "torch/vector_body.inl"

namespace penstock {

const VectorKernels& avx512_kernels() {
  static const VectorKernels kernels = table("avx512");
  return kernels;
}

}  // namespace penstock
