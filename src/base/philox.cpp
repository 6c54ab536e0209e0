// SPDX-License-Identifier: Apache-2.0
#include "base/philox.h"

namespace penstock {

PhiloxBlock philox(std::uint64_t low, std::uint64_t high, std::uint64_t key) {
  const auto word = [](std::uint64_t x) { return static_cast<std::uint32_t>(x); };
  PhiloxBlock c = {word(low), word(low >> 32), word(high), word(high >> 32)};
  std::uint32_t k0 = word(key), k1 = word(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round, k0 += kPhiloxKey0, k1 += kPhiloxKey1) {
    const std::uint64_t p0 = std::uint64_t{kPhiloxFactor0} * c[0], p1 = std::uint64_t{kPhiloxFactor1} * c[2];
    c = {word(p1 >> 32) ^ c[1] ^ k0, word(p1), word(p0 >> 32) ^ c[3] ^ k1, word(p0)};
  }
  return c;
}

}  // namespace penstock
