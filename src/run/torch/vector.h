// SPDX-License-Identifier: Apache-2.0
// Our own loops over f32 and bf16, compiled for several instruction sets, for operations for which libtorch has no lean kernel. Sizes are
// counted in elements. Memory is dense unless a stride says otherwise and may be unaligned. Outputs may be the same memory as an
// elementwise input, and otherwise do not overlap. All loops are deterministic and compute in f32, with a relative error of about 1e-6;
// what is written in bf16 is rounded once, to the nearest even. Activations, softmax and the gradient of cross-entropy in bf16 compute with
// about 1e-4 before that rounding: one number in a hundred becomes the bf16 beside the nearest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace penstock {

// The upper half of an f32.
struct Bf16 {
  std::uint16_t bits;
};

// A matrix in memory: element (i, j) at data[i * row + j * column]. One of the strides is 1.
template <class T>
struct MatrixView {
  const T* data;
  std::int64_t row, column;
};
using StridedMatrix = MatrixView<float>;

struct NormShape {
  std::int64_t rows, width;
};

struct AdamwScalars {
  float beta1, beta2, eps;
  float rest1, rest2;  // 1 - beta1, 1 - beta2, before either is rounded: 1 - 0.999f is off by 1.3e-5 of it
  float decay;         // 1 - learning rate * weight decay
  float step_size;     // learning rate / (1 - beta1^step)
  float correction;    // 1 / sqrt(1 - beta2^step)
};

// Strides in elements of batch, head and position, for one attention over [batch, heads, length, head]; the last dim is dense.
struct HeadStrides {
  std::int64_t batch, head, position;
};
struct AttentionShape {
  std::int64_t batch, heads, queries, keys, head;
  bool causal;  // query i sees keys 0 .. i
  float scale;
};
// Where attention's operands lie. Outputs are written through the same kind of view.
template <class T>
struct HeadsView {
  T* data;
  HeadStrides strides;
};
// Attention of query i of each row to keys ranges[row, i, 0] up to and without ranges[row, i, 1].
struct RangesShape {
  std::int64_t batch, heads, queries, keys, head;
  std::int64_t reach;          // keys that a query attends to, at most
  const std::int64_t* ranges;  // [batch, queries, 2]
  const float* bias;           // [heads, 2 * reach - 1], may be null: of key j for query i at j - i - offset + reach - 1
  float scale;
  std::int64_t offset = 0;  // how many places query 0 stands behind key 0
};
inline constexpr std::int64_t kMaxAttentionHead = 512;  // blocks of queries and of results must fit on the stack (1 MiB in all)

// The loops over tensors of T. Statistics, and the weights of norms and their gradients, are f32.
template <class T>
struct ElementKernels {
  void (*add)(const T* a, const T* b, T* out, std::int64_t n);
  // Adds from left to right; count >= 1.
  void (*add_n)(const T* const* parts, std::size_t count, T* out, std::int64_t n);
  void (*mul)(const T* a, const T* b, T* out, std::int64_t n);
  void (*scale)(const T* a, float factor, T* out, std::int64_t n);
  // out[r, c] = x[r, c] + bias[c]
  void (*add_bias)(const T* x, const T* bias, T* out, NormShape shape);
  // out[c] (+)= sum over rows of x[r, c]
  void (*column_sum)(const T* x, float* out, NormShape shape, bool accumulate);

  void (*gelu)(const T* x, T* out, std::int64_t n, bool tanh);
  void (*gelu_backward)(const T* dy, const T* x, T* dx, std::int64_t n, bool tanh);
  void (*silu)(const T* x, T* out, std::int64_t n);
  void (*silu_backward)(const T* dy, const T* x, T* dx, std::int64_t n);

  // mean and rstd: [rows]. weight, bias: [width], may be null.
  void (*layer_norm)(const T* x, const float* weight, const float* bias, T* y, float* mean, float* rstd, NormShape shape, float eps);
  // dx, dweight, dbias may be null (not wanted). The weight's gradients are added to what is there where `accumulate`.
  void (*layer_norm_backward)(const T* dy, const T* x, const float* mean, const float* rstd, const float* weight, T* dx, float* dweight,
                              float* dbias, NormShape shape, bool accumulate);

  void (*softmax)(const T* x, T* y, NormShape shape, bool log);
  void (*softmax_backward)(const T* dy, const T* y, T* dx, NormShape shape, bool log);

  // Sum over rows of logsumexp(row) - row[target]; rows whose target is `ignore` count nothing. logsumexp [rows] may be null.
  double (*cross_entropy)(const T* logits, const std::int64_t* targets, float* logsumexp, NormShape shape, std::int64_t ignore);
  // dlogits = (exp(logits - logsumexp) - onehot(target - begin)) * factor; zero rows for `ignore`. The logits are those of class `begin`
  // and the next ones, of all or of some that the logsumexp is of. logsumexp may be null: it is computed again, of these.
  void (*cross_entropy_backward)(const T* logits, const std::int64_t* targets, const float* logsumexp, T* dlogits, NormShape shape,
                                 std::int64_t ignore, std::int64_t begin, float factor);

  // c [m, n] (row stride ldc) = a [m, k] * b [k, n], plus bias [n] where it is not null.
  void (*gemm)(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView<T> a, MatrixView<T> b, T* c, std::int64_t ldc, const T* bias);
  // The same into f32, plus c itself where `accumulate`.
  void (*gemm_f32)(std::int64_t m, std::int64_t n, std::int64_t k, MatrixView<T> a, MatrixView<T> b, float* c, std::int64_t ldc,
                   bool accumulate);

  // logsumexp: [batch, heads, queries], dense.
  void (*attention)(HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v, HeadsView<T> out, float* logsumexp,
                    AttentionShape shape);
  // sums: memory for 2 * keys * head numbers, for types that cannot hold a sum of dk or dv; null for f32.
  void (*attention_backward)(HeadsView<const T> dout, HeadsView<const T> q, HeadsView<const T> k, HeadsView<const T> v,
                             HeadsView<const T> out, const float* logsumexp, HeadsView<T> dq, HeadsView<T> dk, HeadsView<T> dv,
                             AttentionShape shape, float* sums);
};

struct VectorKernels : ElementKernels<float> {
  const char* name;  // the instruction set's
  ElementKernels<Bf16> bf16;

  void (*to_bf16)(const float* x, Bf16* out, std::int64_t n);
  void (*to_f32)(const Bf16* x, float* out, std::int64_t n);

  // Computes the logsumexp of each row; -inf where it holds nothing else.
  void (*logsumexp)(const float* x, float* out, NormShape shape);

  // Dropout of a part of a row: element e is kept, times scale, where word e % 4 of philox(first + e / 4, row, key) is at least threshold;
  // else zero.
  void (*dropout)(const float* x, float* y, std::int64_t n, std::uint64_t first, std::uint64_t row, std::uint64_t key,
                  std::uint32_t threshold, float scale);

  void (*adamw)(const float* p, const float* g, const float* m, const float* v, float* p_out, float* m_out, float* v_out, std::int64_t n,
                AdamwScalars s);

  void (*attention_in_ranges)(HeadsView<const float> q, HeadsView<const float> k, HeadsView<const float> v, HeadsView<float> out,
                              float* logsumexp, RangesShape shape);
  // dbias like the bias; null where there is none.
  void (*attention_in_ranges_backward)(HeadsView<const float> dout, HeadsView<const float> q, HeadsView<const float> k,
                                       HeadsView<const float> v, HeadsView<const float> out, const float* logsumexp, HeadsView<float> dq,
                                       HeadsView<float> dk, HeadsView<float> dv, float* dbias, RangesShape shape);
};

// The best set of loops that this machine can run, and all that it can run (for tests).
const VectorKernels& vector_kernels();
std::span<const VectorKernels* const> all_vector_kernels();

}  // namespace penstock
