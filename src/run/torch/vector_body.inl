// SPDX-License-Identifier: Apache-2.0
// All loops of one instruction set: included by vector_<set>.cpp, which is compiled for that set.
#include <math.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "base/philox.h"
#include "torch/vector.h"

namespace penstock {
namespace {

#include "torch/vector_math.inl"
//
#include "torch/vector_elementwise.inl"
#include "torch/vector_rows.inl"
//
#include "torch/vector_random.inl"
//
#include "torch/vector_gemm.inl"
//
#include "torch/vector_attention.inl"

template <class T>
ElementKernels<T> loops() {
  return {add,           add_n,
          mul,           scale,
          add_bias,      column_sum,
          gelu,          gelu_backward,
          silu,          silu_backward,
          layer_norm,    layer_norm_backward,
          softmax,       softmax_backward,
          cross_entropy, cross_entropy_backward,
          gemm,          gemm_f32,
          attention,     attention_backward};
}

void to_bf16(const float* x, Bf16* out, std::int64_t n) {
  map1(x, out, n, [](Vec v) { return v; });
}
void to_f32(const Bf16* x, float* out, std::int64_t n) {
  map1(x, out, n, [](Vec v) { return v; });
}

VectorKernels table(const char* name) {
  return {
      loops<float>(), name, loops<Bf16>(), to_bf16, to_f32, logsumexp, dropout, adamw, attention_in_ranges, attention_in_ranges_backward};
}

}  // namespace
}  // namespace penstock
