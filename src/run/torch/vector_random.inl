// SPDX-License-Identifier: Apache-2.0
// Random masks. The bits are those of philox() in philox.h, several blocks at a time.

constexpr int kBlocks = kLanes / 2;  // one block per 64-bit lane
using Wide = std::uint64_t __attribute__((vector_size(kLanes * 4)));
using Words = std::uint32_t __attribute__((vector_size(kLanes * 4)));

inline Wide wide(std::uint64_t x) { return x - Wide{}; }

// The low halves' product.
inline Wide multiply(Wide a, std::uint64_t b) {
#if defined(__AVX512F__)
  return reinterpret_cast<Wide>(_mm512_mul_epu32(reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(wide(b))));
#else
  return (a & 0xffffffffu) * b;
#endif
}

struct PhiloxWords {
  Wide even, odd;  // words 0 and 1, words 2 and 3 of each block
};

inline PhiloxWords philox(Wide block, std::uint64_t row, std::uint64_t key) {
  const Wide low = wide(0xffffffffu);
  Wide c0 = block & low, c1 = block >> 32, c2 = wide(row & 0xffffffffu), c3 = wide(row >> 32);
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round, k0 += kPhiloxKey0, k1 += kPhiloxKey1) {
    const Wide p0 = multiply(c0, kPhiloxFactor0), p1 = multiply(c2, kPhiloxFactor1);
    c0 = (p1 >> 32) ^ c1 ^ k0;
    c1 = p1 & low;
    c2 = (p0 >> 32) ^ c3 ^ k1;
    c3 = p0 & low;
  }
  return {c0 | c1 << 32, c2 | c3 << 32};
}

// Element e is kept, times `scale`, where word e % 4 of the row's block `block` + e / 4 is at least `threshold`; else zero.
void dropout(const float* x, float* y, std::int64_t n, std::uint64_t block, std::uint64_t row, std::uint64_t key,
             std::uint32_t threshold, float scale) {
  Wide lane, first, second;
  for (int i = 0; i < kBlocks; ++i) {
    lane[i] = static_cast<std::uint64_t>(i);
    const auto half = static_cast<std::uint64_t>(i / 2), from = static_cast<std::uint64_t>(i % 2 * kBlocks);
    first[i] = half + from;
    second[i] = half + from + kBlocks / 2;
  }
  const auto apply = [&](Wide bits, Vec v) {
    Words words;
    __builtin_memcpy(&words, &bits, sizeof words);
    return words >= threshold ? v * scale : Vec{};
  };
  for (std::int64_t e = 0; e < n; e += 2 * kLanes) {
    const PhiloxWords words = philox(lane + (block + static_cast<std::uint64_t>(e / 4)), row, key);
    const Wide bits[2] = {__builtin_shuffle(words.even, words.odd, first), __builtin_shuffle(words.even, words.odd, second)};
    for (int half = 0; half < 2; ++half) {
      const std::int64_t at = e + half * kLanes, rest = n - at;
      if (rest >= kLanes)
        store(y + at, apply(bits[half], load(x + at)));
      else if (rest > 0)
        store_part(y + at, apply(bits[half], load_part(x + at, rest)), rest);
    }
  }
}
