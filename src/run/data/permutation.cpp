// SPDX-License-Identifier: Apache-2.0
#include "data/permutation.h"

#include <algorithm>
#include <bit>

#include "base/invariant.h"

namespace penstock {
namespace {

constexpr int kRounds = 6;

// The finaliser of SplitMix64 (Steele, Lea & Flood, OOPSLA 2014).
std::uint64_t scramble(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t mix_key(std::uint64_t seed, std::uint64_t counter) {
  return scramble(scramble(seed + 0x9e3779b97f4a7c15ull) ^ counter);
}

Permutation::Permutation(std::uint64_t n, std::uint64_t key) : n_(n), key_(key) {
  invariant(n >= 1, "a permutation of something");
  half_bits_ = std::max(1, (static_cast<int>(std::bit_width(n - 1)) + 1) / 2);
}

std::uint64_t Permutation::encrypt(std::uint64_t block) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  std::uint64_t left = block >> half_bits_, right = block & mask;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t next = left ^ (mix_key(key_ + round, right) & mask);
    left = right;
    right = next;
  }
  return (left << half_bits_) | right;
}

std::uint64_t Permutation::operator()(std::uint64_t index) const {
  invariant(index < n_, "an index inside the permutation");
  // The domain has at most 4n numbers, so the walk takes four steps on average at worst; it comes back because encrypt() is a bijection.
  do index = encrypt(index);
  while (index >= n_);
  return index;
}

}  // namespace penstock
