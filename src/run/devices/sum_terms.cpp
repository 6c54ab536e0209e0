// SPDX-License-Identifier: Apache-2.0
#include "devices/sum_terms.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "base/bf16.h"
#include "base/invariant.h"
#include "penstock/program.h"

namespace penstock {
namespace {

// Numbers kept as T, of which sums are made as Sum: a stride of each term at a time, so that what is read may be where the sum is written.
template <class T, class Sum, class Widen, class Narrow>
void sum_strides(std::span<const std::byte* const> terms, std::size_t begin, std::size_t bytes, std::byte* total, Widen widen,
                 Narrow narrow) {
  std::array<T, kAlignment / sizeof(T)> term;
  std::array<Sum, term.size()> sum;
  for (std::size_t at = 0; at < bytes; at += kAlignment) {
    std::memcpy(term.data(), terms[0] + begin + at, kAlignment);
    for (std::size_t i = 0; i < term.size(); ++i) sum[i] = widen(term[i]);
    for (const std::byte* other : terms.subspan(1)) {
      std::memcpy(term.data(), other + begin + at, kAlignment);
      for (std::size_t i = 0; i < term.size(); ++i) sum[i] += widen(term[i]);
    }
    for (std::size_t i = 0; i < term.size(); ++i) term[i] = narrow(sum[i]);
    std::memcpy(total + at, term.data(), kAlignment);
  }
}

}  // namespace

void sum_terms(DType dtype, std::span<const std::byte* const> terms, std::size_t begin, std::size_t bytes, std::byte* total) {
  const auto same = [](auto number) { return number; };
  switch (dtype) {
    case DType::f32:
      return sum_strides<float, float>(terms, begin, bytes, total, same, same);
    case DType::f64:
      return sum_strides<double, double>(terms, begin, bytes, total, same, same);
    case DType::i32:
      return sum_strides<std::uint32_t, std::uint32_t>(terms, begin, bytes, total, same, same);
    case DType::i64:
      return sum_strides<std::uint64_t, std::uint64_t>(terms, begin, bytes, total, same, same);
    case DType::bf16:
      return sum_strides<std::uint16_t, float>(terms, begin, bytes, total, f32_of_bf16, bf16_of_f32);
    default:
      invariant(false, "the verifier lets only sums of f32, f64, bf16, i32 and i64 pass");
  }
}

}  // namespace penstock
