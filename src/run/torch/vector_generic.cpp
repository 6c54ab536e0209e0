// SPDX-License-Identifier: Apache-2.0
#include "torch/vector_body.inl"

namespace penstock {

const VectorKernels& generic_kernels() {
  static const VectorKernels kernels = table("generic");
  return kernels;
}

}  // namespace penstock
