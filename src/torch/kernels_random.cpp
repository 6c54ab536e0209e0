#include <cmath>

#include "torch/kernel_support.h"
#include "torch/philox.h"

namespace penstock {
namespace {

using T = at::Tensor;
// Dropout of one row: element e uses word e % 4 of the block at counter (e / 4, row). Kept elements are scaled by 1 / (1 - p).
void dropout_row(const double* x, double* y, std::int64_t n, std::uint64_t row, std::uint64_t key, std::uint32_t threshold, double scale) {
  for (std::int64_t e = 0; e < n; e += 4) {
    const PhiloxBlock bits = philox(static_cast<std::uint64_t>(e / 4), row, key);
    for (std::int64_t i = e; i < n && i < e + 4; ++i) y[i] = bits[static_cast<std::size_t>(i - e)] >= threshold ? x[i] * scale : 0;
  }
}

template <class Scalar, class Row>
Bound bind_dropout_of(const Site& site, double p, Row dropout) {
  const T &x = site.operands[0], &key = site.operands[1], &rows = site.operands[2], &y = site.results[0];
  const auto threshold = static_cast<std::uint32_t>(std::lround(p * 4294967295.0));
  return [from = static_cast<const Scalar*>(x.data_ptr()), to = static_cast<Scalar*>(y.data_ptr()), count = x.size(0),
          width = x.numel() / std::max<std::int64_t>(x.size(0), 1), key = static_cast<const std::int64_t*>(key.data_ptr()),
          row = static_cast<const std::int64_t*>(rows.data_ptr()), threshold, dropout, scale = static_cast<Scalar>(1 / (1 - p))] {
    for (std::int64_t r = 0; r < count; ++r)
      dropout(from + r * width, to + r * width, width, static_cast<std::uint64_t>(row[r]), static_cast<std::uint64_t>(*key), threshold,
              scale);
  };
}

Bound bind_dropout(const Site& site) {
  const T &x = site.operands[0], &y = site.results[0];
  const double p = number_attribute(site.op, "p");
  if (is_dense_f32(x) && is_dense_f32(y)) return bind_dropout_of<float>(site, p, vector_kernels().dropout);
  if (x.scalar_type() == at::kDouble && x.is_contiguous() && y.is_contiguous()) return bind_dropout_of<double>(site, p, dropout_row);
  // Strided or low-precision operands go through dense f64.
  const T wide = x.to(at::kDouble).contiguous(), out = wide.clone();
  const T operands[] = {wide, site.operands[1], site.operands[2]}, results[] = {out};
  return [run = bind_dropout_of<double>({site.graph, site.op, operands, results}, p, dropout_row), x, y, wide, out] {
    wide.copy_(x);
    run();
    y.copy_(out);
  };
}

// The key of an op is a Philox block of (op, step) under the seed, so that keys of neighbouring ops and steps have nothing in common.
Bound bind_random_key(const Site& site) {
  return [seed = static_cast<const std::int64_t*>(site.operands[0].data_ptr()),
          step = static_cast<const std::int64_t*>(site.operands[1].data_ptr()), op = attribute<std::int64_t>(site.op, "op"),
          out = static_cast<std::int64_t*>(site.results[0].data_ptr())] {
    const PhiloxBlock bits = philox(static_cast<std::uint64_t>(*step), static_cast<std::uint64_t>(op), static_cast<std::uint64_t>(*seed));
    *out = static_cast<std::int64_t>(std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 32);
  };
}

}  // namespace

std::span<const Kernel> random_kernels() {
  static const Kernel all[] = {
      {.name = "dropout", .bind = bind_dropout},
      {.name = "random_key", .bind = bind_random_key},
  };
  return all;
}

}  // namespace penstock
