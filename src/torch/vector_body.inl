// All loops of one instruction set: included by vector_<set>.cpp, which is compiled for that set.
#include <math.h>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "torch/philox.h"
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

VectorKernels table(const char* name) {
  return {name,
          add,
          add_n,
          mul,
          scale,
          add_bias,
          column_sum,
          gelu,
          gelu_backward,
          silu,
          silu_backward,
          layer_norm,
          layer_norm_backward,
          softmax,
          softmax_backward,
          cross_entropy,
          cross_entropy_backward,
          logsumexp,
          dropout,
          adamw,
          gemm,
          attention,
          attention_backward,
          attention_in_ranges,
          attention_in_ranges_backward};
}

}  // namespace
}  // namespace penstock
