// SPDX-License-Identifier: Apache-2.0
#include "torch/vector.h"

#include <vector>

namespace penstock {

// One function per instruction set that the build can make (cmake/torch.cmake); the others are not defined.
const VectorKernels& generic_kernels();
#ifdef PENSTOCK_X86
const VectorKernels& avx2_kernels();
const VectorKernels& avx512_kernels();
const VectorKernels& avx512_bf16_kernels();
#endif

namespace {

std::vector<const VectorKernels*> find_kernels() {
  std::vector<const VectorKernels*> out{&generic_kernels()};
#ifdef PENSTOCK_X86
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) out.push_back(&avx2_kernels());
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512bw")) {
    out.push_back(&avx512_kernels());
    if (__builtin_cpu_supports("avx512bf16")) out.push_back(&avx512_bf16_kernels());
  }
#endif
  return out;
}

}  // namespace

std::span<const VectorKernels* const> all_vector_kernels() {
  static const std::vector<const VectorKernels*> kernels = find_kernels();
  return kernels;
}

const VectorKernels& vector_kernels() {
  return *all_vector_kernels().back();
}

}  // namespace penstock
