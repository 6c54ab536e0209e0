// SPDX-License-Identifier: Apache-2.0
#include "state/draws.h"

#include <cmath>
#include <numbers>

#include "base/philox.h"

namespace penstock {
namespace {

// A number in (0, 1) of 52 bits, centred.
double uniform(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = ((static_cast<std::uint64_t>(high) << 32) | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace

std::array<double, 2> normal_draws(std::uint64_t key, std::uint64_t pair) {
  const PhiloxBlock bits = philox(pair, 0, key);
  const double radius = std::sqrt(-2 * std::log(uniform(bits[0], bits[1])));
  const double angle = 2 * std::numbers::pi * uniform(bits[2], bits[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double uniform_draw(std::uint64_t key, std::uint64_t index) {
  const PhiloxBlock bits = philox(index, 0, key);
  return uniform(bits[0], bits[1]);
}

}  // namespace penstock
