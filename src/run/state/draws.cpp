#include "state/draws.h"

#include <cmath>
#include <numbers>

namespace penstock {
namespace {

using Block = std::array<std::uint32_t, 4>;

Block philox(std::uint64_t index, std::uint64_t key) {
  Block counter = {static_cast<std::uint32_t>(index), static_cast<std::uint32_t>(index >> 32), 0, 0};
  auto low = static_cast<std::uint32_t>(key), high = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = 0xD2511F53ull * counter[0], b = 0xCD9E8D57ull * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ low, static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ high, static_cast<std::uint32_t>(a)};
    low += 0x9E3779B9u;
    high += 0xBB67AE85u;
  }
  return counter;
}

// A number in (0, 1) of 52 bits, centred.
double uniform(std::uint32_t high, std::uint32_t low) {
  const std::uint64_t bits = ((static_cast<std::uint64_t>(high) << 32) | low) >> 12;
  return (static_cast<double>(bits) + 0.5) * 0x1p-52;
}

}  // namespace

std::array<double, 2> normal_draws(std::uint64_t key, std::uint64_t pair) {
  const Block bits = philox(pair, key);
  const double radius = std::sqrt(-2 * std::log(uniform(bits[0], bits[1])));
  const double angle = 2 * std::numbers::pi * uniform(bits[2], bits[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double uniform_draw(std::uint64_t key, std::uint64_t index) {
  const Block bits = philox(index, key);
  return uniform(bits[0], bits[1]);
}

}  // namespace penstock
