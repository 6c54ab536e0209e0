// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

#include "base/text.h"
#include "penstock/error.h"
#include "torch/aten_kernels.h"
#include "torch/device_kernels.h"
#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;

void require_row(std::int64_t index, std::int64_t rows) {
  if (index < 0 || index >= rows)
    throw Error(concat("embedding: index ", index, " is outside its ", rows, " rows"), {}, "is a token outside the model's vocabulary?");
}

// The rows that are here of a table of `whole` rows: those from `begin` on.
struct TablePart {
  std::int64_t begin = 0, rows = 0, whole = 0;

  bool is_all() const { return rows == whole; }
  // Where the row of that index is here; -1: it is elsewhere. Throws Error for an index that no table has.
  std::int64_t place(std::int64_t index) const {
    require_row(index, whole);
    return index >= begin && index < begin + rows ? index - begin : -1;
  }
};

TablePart part_of(const Op& op, std::int64_t rows) {
  return {attribute_or(op, "begin", std::int64_t{0}), rows, attribute_or(op, "whole", rows)};
}

// Where the row lies that comes some rows later, for __builtin_prefetch: rows lie anywhere, and waiting for each in turn takes several
// times as long as what is done with it. A function that prefetched by itself would be dropped by the compiler as one without effect.
const void* later_row(const TablePart& part, std::span<const std::int64_t> indices, std::size_t i, const void* table,
                      std::size_t row_bytes) {
  constexpr std::size_t kRowsLater = 16;
  if (i + kRowsLater >= indices.size()) return table;
  const std::int64_t row = indices[i + kRowsLater] - part.begin;
  return row >= 0 && row < part.rows ? static_cast<const char*>(table) + static_cast<std::size_t>(row) * row_bytes : table;
}

// The indices in the part's own count; one past its end for rows that are elsewhere.
T places_of(const T& indices, const TablePart& part) {
  const T dense = indices.contiguous(), out = at::empty_like(dense);
  const auto* from = data_of<const std::int64_t>(dense);
  auto* to = data_of<std::int64_t>(out);
  for (std::int64_t i = 0; i < dense.numel(); ++i) {
    const std::int64_t place = part.place(from[i]);
    to[i] = place < 0 ? part.rows : place;
  }
  return out;
}

// Takes any dtype, as rows are only moved.
Bound bind_embedding(const Site& site) {
  const T &weight = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  const TablePart part = part_of(site.op, weight.size(0));
  if (!weight.is_contiguous() || !indices.is_contiguous() || !out.is_contiguous()) return embedding_by_aten(site);
  return [weights = Place<const char>(weight), part, bytes = static_cast<std::size_t>(weight.size(1) * weight.element_size()),
          places = Place<const std::int64_t>(indices), n = indices.numel(), rows = Place<char>(out)] {
    const char* const from = weights;
    const std::int64_t* const at = places;
    char* const to = rows;
    for (std::int64_t i = 0; i < n; ++i) {
      __builtin_prefetch(later_row(part, {at, static_cast<std::size_t>(n)}, static_cast<std::size_t>(i), from, bytes));
      const std::int64_t row = part.place(at[i]);
      char* const out_row = to + static_cast<std::size_t>(i) * bytes;
      if (row < 0)
        std::memset(out_row, 0, bytes);
      else
        std::memcpy(out_row, from + static_cast<std::size_t>(row) * bytes, bytes);
    }
  };
}

// Marks the rows that have changed, and copies each row from the table or from what was looked up ahead, which has zeros for rows that are
// elsewhere. Takes any dtype.
Bound bind_embedding_patched(const Site& site) {
  const T &weight = site.operands[0], &out = site.results[0];
  const auto marks = std::make_shared<std::vector<bool>>(static_cast<std::size_t>(weight.size(0)));
  const std::vector<T> operands(site.operands.begin(), site.operands.end());
  return [marks, operands, out, part = part_of(site.op, weight.size(0)),
          bytes = static_cast<std::size_t>(weight.size(1) * weight.element_size())] {
    const T table = operands[0].contiguous(), indices = operands[1].contiguous(), ahead = operands[2].contiguous();
    const auto mark = [&](bool changed) {
      for (std::size_t o = 3; o < operands.size(); ++o) {
        const T keys = operands[o].contiguous();
        for (const std::int64_t index : std::span(data_of<const std::int64_t>(keys), keys.numel()))
          if (const std::int64_t place = part.place(index); place >= 0) (*marks)[place] = changed;
      }
    };
    mark(true);
    const auto *fresh = data_of<const char>(table), *old = data_of<const char>(ahead);
    auto* to = data_of<char>(out);
    std::size_t row = 0;
    for (const std::int64_t index : std::span(data_of<const std::int64_t>(indices), indices.numel())) {
      const std::int64_t place = part.place(index);
      const bool anew = place >= 0 && (*marks)[place];
      std::memcpy(to + row * bytes, anew ? fresh + static_cast<std::size_t>(place) * bytes : old + row * bytes, bytes);
      ++row;
    }
    mark(false);
  };
}

// Calls f with a number of the tensor's type.
template <class F>
Bound of_type(const T& tensor, const F& f) {
  if (tensor.scalar_type() == at::kDouble) return f(double{});
  return tensor.scalar_type() == at::kFloat ? f(float{}) : f(c10::BFloat16{});
}

// Rows are added in their order, as `embedding_dense_backward` adds them.
template <class Number>
Bound bind_sums(const Site& site) {
  const std::int64_t rows = attribute<std::int64_t>(site.op, "num_weights");
  const auto places = std::make_shared<std::vector<std::int64_t>>(static_cast<std::size_t>(rows), -1);  // of each index's first row
  return [places, rows, from = site.operands[0], indices = site.operands[1], out = site.results[0]] {
    const T dense = from.contiguous(), at = indices.contiguous();
    const auto* x = data_of<const Number>(dense);
    auto* y = data_of<Number>(out);
    const std::span index(data_of<const std::int64_t>(at), static_cast<std::size_t>(at.numel()));
    const std::int64_t width = from.size(1);
    for (std::size_t i = 0; i < index.size(); ++i) {
      __builtin_prefetch(later_row({0, rows, rows}, index, i, places->data(), sizeof(std::int64_t)));
      require_row(index[i], rows);
      std::int64_t& place = (*places)[static_cast<std::size_t>(index[i])];
      const Number* row = x + static_cast<std::int64_t>(i) * width;
      Number* own = y + static_cast<std::int64_t>(i) * width;
      if (place < 0) {
        place = static_cast<std::int64_t>(i);
        std::copy_n(row, width, own);
        continue;
      }
      std::fill_n(own, width, Number(0));
      Number* sum = y + place * width;
      for (std::int64_t w = 0; w < width; ++w) sum[w] = sum[w] + row[w];
    }
    for (const std::int64_t i : index) (*places)[static_cast<std::size_t>(i)] = -1;
  };
}

// The arithmetic is sgd's: p - (g rate), in the parameter's type.
template <class Number>
Bound bind_sgd_rows(const Site& site) {
  return [table = site.operands[0], gradient = site.operands[1], indices = site.operands[2], rate = site.operands[3],
          part = part_of(site.op, site.operands[0].size(0)), out = site.results[0]] {
    const T g = gradient.contiguous(), at = indices.contiguous();
    if (out.data_ptr() != table.data_ptr()) out.copy_(table);
    auto* p = data_of<Number>(out);
    const auto* d = data_of<const Number>(g);
    const std::int64_t width = table.size(1);
    using Wide = std::conditional_t<std::is_same_v<Number, double>, double, float>;
    const auto r = static_cast<Wide>(rate.item<double>());
    const std::span index(data_of<const std::int64_t>(at), static_cast<std::size_t>(at.numel()));
    for (std::size_t i = 0; i < index.size(); ++i) {
      __builtin_prefetch(later_row(part, index, i, p, static_cast<std::size_t>(width) * sizeof(Number)));
      if (const std::int64_t row = part.place(index[i]); row >= 0)
        for (std::int64_t w = 0; w < width; ++w) p[row * width + w] = p[row * width + w] - static_cast<Number>(d[w] * r);
      d += width;
    }
  };
}

// Goes from the last index to the first, whose row stays. Takes any dtype.
Bound bind_put_rows(const Site& site) {
  return [table = site.operands[0], rows = site.operands[1], indices = site.operands[2], out = site.results[0],
          part = part_of(site.op, site.operands[0].size(0)),
          bytes = static_cast<std::size_t>(site.operands[0].size(1) * site.operands[0].element_size())] {
    const T given = rows.contiguous(), at = indices.contiguous();
    if (out.data_ptr() != table.data_ptr()) out.copy_(table);
    const auto* from = data_of<const char>(given);
    auto* to = data_of<char>(out);
    const std::span index(data_of<const std::int64_t>(at), static_cast<std::size_t>(at.numel()));
    for (std::size_t i = index.size(); i-- > 0;)
      if (const std::int64_t row = part.place(index[i]); row >= 0)
        std::memcpy(to + static_cast<std::size_t>(row) * bytes, from + i * bytes, bytes);
  };
}

// The rows of a bag are added in the bag's order.
Bound bind_embedding_bag(const Site& site) {
  const T &weight = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  const TablePart part = part_of(site.op, weight.size(0));
  if (are_dense_f32(weight, out) && indices.is_contiguous())
    return [f = vector_kernels().add, weights = floats(weight), part, width = weight.size(1), places = Place<const std::int64_t>(indices),
            n = indices.numel(), bag = indices.size(-1), out] {
      const float* const w = weights;
      const std::int64_t* const at = places;
      float* const q = mutable_floats(out);
      std::memset(q, 0, static_cast<std::size_t>(out.numel()) * sizeof(float));
      for (std::int64_t i = 0; i < n; ++i) {
        const std::int64_t row = part.place(at[i]);
        float* sum = q + i / bag * width;
        if (row >= 0) f(sum, w + row * width, sum, width);
      }
    };
  return embedding_bag_by_aten(site);
}

// Adds each row of dy to the `bag` rows that its indices name. They are added in order, so that the sum does not depend on threads.
Bound bind_backward(const Site& site, std::int64_t bag) {
  const bool accumulate = site.accumulate & 1;
  const T &dy = site.operands[0], &indices = site.operands[1], &out = site.results[0];
  const TablePart part = part_of(site.op, out.size(0));
  if (are_dense_f32(dy, out) && indices.is_contiguous())
    return [f = vector_kernels().add, dy, places = Place<const std::int64_t>(indices), n = indices.numel(), bag, out, part,
            width = out.size(1), accumulate] {
      const float* const d = floats(dy);
      const std::int64_t* const at = places;
      float* const q = mutable_floats(out);
      if (!accumulate) std::memset(q, 0, static_cast<std::size_t>(part.rows * width) * sizeof(float));
      for (std::int64_t i = 0; i < n; ++i) {
        __builtin_prefetch(later_row(part, {at, static_cast<std::size_t>(n)}, static_cast<std::size_t>(i), q,
                                     static_cast<std::size_t>(width) * sizeof(float)));
        const std::int64_t row = part.place(at[i]);
        if (row >= 0) f(q + row * width, d + i / bag * width, q + row * width, width);
      }
    };
  return [dy, indices, bag, out, part, accumulate] {
    if (!accumulate) out.zero_();
    const T rows = dy.reshape({-1, 1, out.size(1)}).expand({-1, bag, -1}).reshape({-1, out.size(1)});
    if (part.is_all()) {
      out.index_add_(0, indices.reshape({-1}), rows);
      return;
    }
    const T places = places_of(indices, part).reshape({-1}), here = places.lt(part.rows).nonzero().reshape({-1});
    out.index_add_(0, places.index_select(0, here), rows.index_select(0, here));
  };
}

}  // namespace

std::span<const Kernel> embedding_kernels() {
  static const Kernel all[] = {
      {.name = "embedding", .bind = bind_embedding, .bind_device = own_or<embedding_by_kernel, embedding_by_aten>},
      {.name = "embedding_patched", .bind = bind_embedding_patched, .bind_device = embedding_patched_by_aten},
      {.name = "embedding_dense_backward",
       .bind = [](const Site& s) { return bind_backward(s, 1); },
       .bind_device = own_or<embedding_backward_by_kernel, embedding_dense_backward_by_aten>,
       .accumulates = 1},
      {.name = "sum_equal_rows",
       .bind = [](const Site& s) { return of_type(s.operands[0], [&](auto x) { return bind_sums<decltype(x)>(s); }); },
       .bind_device = sum_equal_rows_by_aten},
      {.name = "sgd_rows",
       .bind = [](const Site& s) { return of_type(s.operands[0], [&](auto x) { return bind_sgd_rows<decltype(x)>(s); }); },
       .bind_device = sgd_rows_by_aten},
      {.name = "take_rows", .bind = bind_embedding, .bind_device = embedding_by_aten},
      {.name = "put_rows", .bind = bind_put_rows, .bind_device = put_rows_by_aten},
      {.name = "embedding_bag", .bind = bind_embedding_bag, .bind_device = embedding_bag_by_aten},
      {.name = "embedding_bag_dense_backward",
       .bind = [](const Site& s) { return bind_backward(s, s.operands[1].size(-1)); },
       .bind_device = own_or<embedding_backward_by_kernel, embedding_dense_backward_by_aten>,
       .accumulates = 1},
  };
  return all;
}

}  // namespace penstock
