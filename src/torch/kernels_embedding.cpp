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

// Takes any dtype, as rows are only moved.
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

// The rows of a bag are added in the bag's order.
Bound bind_embedding_bag(const Site& site) {
  const T &weight = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  if (are_dense_f32(weight, out) && indices.is_contiguous())
    return [f = vector_kernels().add, w = floats(weight), rows = weight.size(0), width = weight.size(1),
            at = static_cast<const std::int64_t*>(indices.data_ptr()), n = indices.numel(), bag = indices.size(-1), out,
            q = mutable_floats(out)] {
      std::memset(q, 0, static_cast<std::size_t>(out.numel()) * sizeof(float));
      for (std::int64_t i = 0; i < n; ++i) {
        require_row(at[i], rows);
        float* sum = q + i / bag * width;
        f(sum, w + at[i] * width, sum, width);
      }
    };
  return [weight, indices, out] {
    Shape bags = indices.sizes().vec();
    bags.push_back(weight.size(1));
    const T rows = weight.index_select(0, indices.reshape({-1})).view(bags);
    out.copy_(is_low_precision(rows) ? in_f32(rows).sum(-2) : rows.sum(-2));
  };
}

// Adds each row of dy to the `bag` rows that its indices name. They are added in order, so that the sum does not depend on threads.
Bound bind_backward(const Site& site, std::int64_t bag) {
  const bool accumulate = site.accumulate & 1;
  const T &dy = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  if (are_dense_f32(dy, out) && indices.is_contiguous())
    return [f = vector_kernels().add, d = floats(dy), at = static_cast<const std::int64_t*>(indices.data_ptr()), n = indices.numel(), bag,
            out, q = mutable_floats(out), rows = out.size(0), width = out.size(1), accumulate] {
      if (!accumulate) std::memset(q, 0, static_cast<std::size_t>(rows * width) * sizeof(float));
      for (std::int64_t i = 0; i < n; ++i) {
        require_row(at[i], rows);
        f(q + at[i] * width, d + i / bag * width, q + at[i] * width, width);
      }
    };
  return [dy, indices, bag, out, accumulate] {
    if (!accumulate) out.zero_();
    const T rows = dy.reshape({-1, 1, out.size(1)}).expand({-1, bag, -1});
    out.index_add_(0, indices.reshape({-1}), rows.reshape({-1, out.size(1)}));
  };
}

}  // namespace

std::span<const Kernel> embedding_kernels() {
  static const Kernel all[] = {
      {.name = "embedding", .bind = bind_embedding},
      {.name = "embedding_dense_backward", .bind = [](const Site& s) { return bind_backward(s, 1); }, .accumulates = 1},
      {.name = "embedding_bag", .bind = bind_embedding_bag},
      {.name = "embedding_bag_dense_backward",
       .bind = [](const Site& s) { return bind_backward(s, s.operands[1].size(-1)); },
       .accumulates = 1},
  };
  return all;
}

}  // namespace penstock
