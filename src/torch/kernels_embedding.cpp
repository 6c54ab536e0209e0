#include <cstring>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

void require_row(std::int64_t index, std::int64_t rows) {
  if (index < 0 || index >= rows)
    throw Error(concat("embedding: index ", index, " is outside its ", rows, " rows"), {}, "is a token outside the model's vocabulary?");
}

// Any dtype: rows are moved, not read.
Bound bind_embedding(const Site& site) {
  const T &weight = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  if (!weight.is_contiguous() || !indices.is_contiguous() || !out.is_contiguous())
    return [weight, indices, out] { out.copy_(weight.index_select(0, indices.reshape({-1})).view(out.sizes())); };
  return [from = static_cast<const char*>(weight.data_ptr()), rows = weight.size(0),
          bytes = static_cast<std::size_t>(weight.size(1) * weight.element_size()),
          at = static_cast<const std::int64_t*>(indices.data_ptr()), n = indices.numel(), to = static_cast<char*>(out.data_ptr())] {
    for (std::int64_t i = 0; i < n; ++i) {
      require_row(at[i], rows);
      std::memcpy(to + static_cast<std::size_t>(i) * bytes, from + static_cast<std::size_t>(at[i]) * bytes, bytes);
    }
  };
}

// Rows of dy are added in order, so that the sum does not depend on threads.
Bound bind_embedding_backward(const Site& site) {
  const bool accumulate = site.accumulate & 1;
  const T &dy = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  if (are_dense_f32(dy, out) && indices.is_contiguous())
    return [f = vector_kernels().add, d = floats(dy), at = static_cast<const std::int64_t*>(indices.data_ptr()), n = indices.numel(), out,
            q = mutable_floats(out), rows = out.size(0), width = out.size(1), accumulate] {
      if (!accumulate) std::memset(q, 0, static_cast<std::size_t>(rows * width) * sizeof(float));
      for (std::int64_t i = 0; i < n; ++i) {
        require_row(at[i], rows);
        f(q + at[i] * width, d + i * width, q + at[i] * width, width);
      }
    };
  return [dy, indices, out, accumulate] {
    if (!accumulate) out.zero_();
    out.index_add_(0, indices.reshape({-1}), dy.reshape({-1, out.size(1)}));
  };
}

const Kernel kKernels[] = {
    {.name = "embedding", .bind = bind_embedding},
    {.name = "embedding_dense_backward", .bind = bind_embedding_backward, .accumulates = 1},
};

}  // namespace

std::span<const Kernel> embedding_kernels() {
  return kKernels;
}

}  // namespace penstock
