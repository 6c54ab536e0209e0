// SPDX-License-Identifier: Apache-2.0
// bf16 as its bits: the upper half of an f32.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace penstock {

inline float f32_of_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// The nearest, of two that are as near the even one.
inline std::uint16_t bf16_of_f32(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if (std::isnan(x)) return static_cast<std::uint16_t>(bits >> 16 | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace penstock
