// SPDX-License-Identifier: Apache-2.0
// A seeded permutation of 0 .. n-1 that needs no table: samples are shuffled without holding them.
#pragma once

#include <cstdint>

namespace penstock {

// A Feistel network over the smallest even number of bits that holds n, walked until it lands below n (Black & Rogaway,
// "Ciphers with Arbitrary Finite Domains", 2002). Depends on n and key only.
class Permutation {
 public:
  Permutation(std::uint64_t n, std::uint64_t key);      // n >= 1
  std::uint64_t operator()(std::uint64_t index) const;  // index < n

 private:
  std::uint64_t encrypt(std::uint64_t block) const;

  std::uint64_t n_, key_;
  int half_bits_;
};

// The key of a stream of draws: a mix of a seed and a counter.
std::uint64_t mix_key(std::uint64_t seed, std::uint64_t counter);

}  // namespace penstock
