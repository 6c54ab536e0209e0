// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "base/philox.h"
#include "torch/aten_kernels.h"
#include "torch/device_kernels.h"
#include "torch/kernel_support.h"
#include "torch/row_places.h"

namespace penstock {
namespace {

using T = at::Tensor;

// Dropout of elements `first` to first + n of a row: element e uses word e % 4 of the block at counter (e / 4, row). Kept elements are
// scaled by 1 / (1 - p).
template <class Scalar>
void dropout_words(const Scalar* x, Scalar* y, std::int64_t n, std::int64_t first, std::uint64_t row, std::uint64_t key,
                   std::uint32_t threshold, Scalar scale) {
  for (std::int64_t e = 0; e < n;) {
    const PhiloxBlock bits = philox(static_cast<std::uint64_t>((first + e) / 4), row, key);
    for (std::int64_t word = (first + e) % 4; word < 4 && e < n; ++word, ++e)
      y[e] = bits[static_cast<std::size_t>(word)] >= threshold ? x[e] * scale : 0;
  }
}

// The same with our own loop from the first whole block on.
void dropout_floats(const float* x, float* y, std::int64_t n, std::int64_t first, std::uint64_t row, std::uint64_t key,
                    std::uint32_t threshold, float scale) {
  const std::int64_t head = std::min(n, (4 - first % 4) % 4);
  dropout_words(x, y, head, first, row, key, threshold, scale);
  vector_kernels().dropout(x + head, y + head, n - head, static_cast<std::uint64_t>((first + head) / 4), row, key, threshold, scale);
}

template <class Scalar, class Words>
Bound bind_dropout_of(const Site& site, double p, Words dropout) {
  const T &x = site.operands[0], &key = site.operands[1], &rows = site.operands[2], &y = site.results[0];
  const auto threshold = static_cast<std::uint32_t>(std::lround(p * 4294967295.0));
  return [x = Place<const Scalar>(x), y = Place<Scalar>(y), count = x.size(0), width = x.numel() / std::max<std::int64_t>(x.size(0), 1),
          key = Place<const std::int64_t>(key), rows, positions = site.operands.size() > 3 ? site.operands[3] : T(),
          places = RowPlaces(site.op), threshold, dropout, scale = static_cast<Scalar>(1 / (1 - p))] {
    const Scalar* const from = x;
    Scalar* const to = y;
    const T dense_rows = rows.contiguous(), dense_positions = positions.defined() ? positions.contiguous() : positions;
    const std::int64_t* const row = Place<const std::int64_t>(dense_rows);
    const std::int64_t* const position = Place<const std::int64_t>(dense_positions);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t begin = position ? position[r] * places.whole_width(width) : 0;
      places.for_ranges(width, [&](std::int64_t e, std::int64_t place, std::int64_t n) {
        dropout(from + r * width + e, to + r * width + e, n, begin + place, static_cast<std::uint64_t>(row[r]),
                static_cast<std::uint64_t>(*key), threshold, scale);
      });
    }
  };
}

Bound bind_dropout(const Site& site) {
  const T &x = site.operands[0], &y = site.results[0];
  const double p = number_attribute(site.op, "p");
  if (is_dense_f32(x) && is_dense_f32(y)) return bind_dropout_of<float>(site, p, dropout_floats);
  if (x.scalar_type() == at::kDouble && x.is_contiguous() && y.is_contiguous())
    return bind_dropout_of<double>(site, p, dropout_words<double>);
  // Strided or low-precision operands go through dense f64.
  const T wide = x.to(at::kDouble).contiguous(), out = wide.clone();
  std::vector<T> operands(site.operands.begin(), site.operands.end());
  operands[0] = wide;
  const T results[] = {out};
  return [run = bind_dropout_of<double>({site.graph, site.op, operands, results}, p, dropout_words<double>), x, y, wide, out] {
    wide.copy_(x);
    run();
    y.copy_(out);
  };
}

// The key of an op is a Philox block of (op, step) under the seed, so that keys of neighbouring ops and steps have nothing in common.
Bound bind_random_key(const Site& site) {
  return [seed = Place<const std::int64_t>(site.operands[0]), step = Place<const std::int64_t>(site.operands[1]),
          op = attribute<std::int64_t>(site.op, "op"), out = Place<std::int64_t>(site.results[0])] {
    const PhiloxBlock bits = philox(static_cast<std::uint64_t>(*step), static_cast<std::uint64_t>(op), static_cast<std::uint64_t>(*seed));
    *out = static_cast<std::int64_t>(std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 32);
  };
}

}  // namespace

std::span<const Kernel> random_kernels() {
  static const Kernel all[] = {
      {.name = "dropout", .bind = bind_dropout, .bind_device = own_or<dropout_by_kernel, dropout_by_aten>},
      {.name = "random_key", .bind = bind_random_key, .bind_device = own_or<random_key_by_kernel, random_key_by_aten>},
  };
  return all;
}

}  // namespace penstock
