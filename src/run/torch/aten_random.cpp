// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/where.h>

#include <array>
#include <cmath>
#include <numeric>

#include "base/philox.h"
#include "torch/aten_composed.h"
#include "torch/aten_kernels.h"
#include "torch/row_places.h"

namespace penstock {
namespace {

using T = at::Tensor;

constexpr std::int64_t kWord = 0xFFFFFFFF;

T low(const T& x) {
  return x.bitwise_and(kWord);
}
T high(const T& x) {
  return x.bitwise_right_shift(32).bitwise_and_(kWord);
}

// philox() of base/philox.h on tensors of i64, whose products wrap as unsigned ones do: the four words at counter (lows, highs) under the
// key.
std::array<T, 4> philox_words(const T& lows, const T& highs, const T& key) {
  std::array<T, 4> c{low(lows), high(lows), low(highs), high(highs)};
  T k0 = low(key), k1 = high(key);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const T p0 = c[0] * std::int64_t{kPhiloxFactor0}, p1 = c[2] * std::int64_t{kPhiloxFactor1};
    c = {high(p1).bitwise_xor(c[1]).bitwise_xor(k0), low(p1), high(p0).bitwise_xor(c[3]).bitwise_xor(k1), low(p0)};
    k0 = low(k0 + std::int64_t{kPhiloxKey0});
    k1 = low(k1 + std::int64_t{kPhiloxKey1});
  }
  return c;
}

}  // namespace

T places_in_row(const RowPlaces& places, std::int64_t width, c10::Device device) {
  const T out = at::empty({width}, at::kLong);
  auto* const to = static_cast<std::int64_t*>(out.data_ptr());
  places.for_ranges(width, [&](std::int64_t e, std::int64_t place, std::int64_t n) { std::iota(to + e, to + e + n, place); });
  return out.to(device);
}

// Operands: seed, step.
Bound random_key_by_aten(const Site& site) {
  return composed(site, [op = attribute<std::int64_t>(site.op, "op")](const AtTensors& in) {
    const std::array<T, 4> words = philox_words(in[1], at::full_like(in[1], op), in[0]);
    return AtTensors{words[0].bitwise_or(words[1].bitwise_left_shift(32))};
  });
}

// Operands: x, key, rows, positions?. Element e of a row uses word e % 4 of the block at counter (e / 4, row); see dropout_words.
Bound dropout_by_aten(const Site& site) {
  const T& x = site.operands[0];
  const std::int64_t count = x.size(0), width = x.numel() / std::max<std::int64_t>(count, 1);
  const double p = number_attribute(site.op, "p");
  const RowPlaces row(site.op);
  return composed(site,
                  [places = places_in_row(row, width, x.device()), whole = row.whole_width(width), count, width, p](const AtTensors& in) {
                    T at = places.unsqueeze(0).expand({count, width});
                    if (in.size() > 3) at = at + in[3].reshape({-1, 1}) * whole;
                    const std::array<T, 4> words = philox_words(at.bitwise_right_shift(2), in[2].reshape({-1, 1}), in[1].reshape({1, 1}));
                    const T of = at.bitwise_and(3);
                    const T word = at::where(of.lt(2), at::where(of.eq(0), words[0], words[1]), at::where(of.eq(2), words[2], words[3]));
                    const T from = in[0].reshape({count, width}), kept = word.ge(std::int64_t{std::lround(p * 4294967295.0)});
                    return AtTensors{at::where(kept, from * (1 / (1 - p)), at::scalar_tensor(0, from.options()))};
                  });
}

}  // namespace penstock
