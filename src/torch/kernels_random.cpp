#include <array>
#include <cmath>

#include "torch/kernel_support.h"

namespace penstock {
namespace {

using T = at::Tensor;
using Block = std::array<std::uint32_t, 4>;

// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
Block philox(Block c, std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c[0], p1 = std::uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1), static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1,
         static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return c;
}

// Element e of a row is word e % 4 of the block at counter (e / 4, row). Kept elements are scaled by 1 / (1 - p).
template <class Scalar>
void dropout_row(const Scalar* x, Scalar* y, std::int64_t n, std::int64_t row, std::uint64_t key, std::uint32_t threshold, Scalar scale) {
  const auto low = static_cast<std::uint32_t>(row), high = static_cast<std::uint32_t>(static_cast<std::uint64_t>(row) >> 32);
  for (std::int64_t e = 0; e < n; e += 4) {
    const auto block = static_cast<std::uint64_t>(e / 4);
    const Block bits = philox({static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32), low, high}, key);
    for (std::int64_t i = e; i < n && i < e + 4; ++i) y[i] = bits[static_cast<std::size_t>(i - e)] >= threshold ? x[i] * scale : Scalar(0);
  }
}

template <class Scalar>
Bound bind_dropout_of(const Site& site, double p) {
  const T &x = site.operands[0], &key = site.operands[1], &rows = site.operands[2], &y = site.results[0];
  const auto threshold = static_cast<std::uint32_t>(std::lround(p * 4294967295.0));
  return [from = static_cast<const Scalar*>(x.data_ptr()), to = static_cast<Scalar*>(y.data_ptr()), count = x.size(0),
          width = x.numel() / std::max<std::int64_t>(x.size(0), 1), key = static_cast<const std::int64_t*>(key.data_ptr()),
          row = static_cast<const std::int64_t*>(rows.data_ptr()), threshold, scale = static_cast<Scalar>(1 / (1 - p))] {
    for (std::int64_t r = 0; r < count; ++r)
      dropout_row(from + r * width, to + r * width, width, row[r], static_cast<std::uint64_t>(*key), threshold, scale);
  };
}

Bound bind_dropout(const Site& site) {
  const T &x = site.operands[0], &y = site.results[0];
  const double p = number_attribute(site.op, "p");
  if (is_dense_f32(x) && is_dense_f32(y)) return bind_dropout_of<float>(site, p);
  if (x.scalar_type() == at::kDouble && x.is_contiguous() && y.is_contiguous()) return bind_dropout_of<double>(site, p);
  // Strided or of low precision: through dense f64.
  const T wide = x.to(at::kDouble).contiguous(), out = wide.clone();
  const T operands[] = {wide, site.operands[1], site.operands[2]}, results[] = {out};
  return [run = bind_dropout_of<double>({site.graph, site.op, operands, results}, p), x, y, wide, out] {
    wide.copy_(x);
    run();
    y.copy_(out);
  };
}

// The key of an op: a Philox block of (op, step) under the seed, so that keys of neighbouring ops and steps have nothing in common.
Bound bind_random_key(const Site& site) {
  return [seed = static_cast<const std::int64_t*>(site.operands[0].data_ptr()),
          step = static_cast<const std::int64_t*>(site.operands[1].data_ptr()), op = attribute<std::int64_t>(site.op, "op"),
          out = static_cast<std::int64_t*>(site.results[0].data_ptr())] {
    const auto s = static_cast<std::uint64_t>(*step), o = static_cast<std::uint64_t>(op);
    const Block bits = philox({static_cast<std::uint32_t>(s), static_cast<std::uint32_t>(s >> 32), static_cast<std::uint32_t>(o),
                               static_cast<std::uint32_t>(o >> 32)},
                              static_cast<std::uint64_t>(*seed));
    *out = static_cast<std::int64_t>(std::uint64_t{bits[0]} | std::uint64_t{bits[1]} << 32);
  };
}

const Kernel kKernels[] = {
    {.name = "dropout", .bind = bind_dropout},
    {.name = "random_key", .bind = bind_random_key},
};

}  // namespace

std::span<const Kernel> random_kernels() {
  return kKernels;
}

}  // namespace penstock
