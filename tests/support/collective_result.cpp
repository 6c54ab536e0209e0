// SPDX-License-Identifier: Apache-2.0
#include "support/collective_result.h"

#include <cstdint>
#include <cstring>

#include "base/bf16.h"

namespace penstock::test {
namespace {

using Bytes = std::vector<std::byte>;

template <class T>
Bytes sum_bytes(const std::vector<Bytes>& given) {
  Bytes out = given[0];
  for (std::size_t at = 0; at + sizeof(T) <= out.size(); at += sizeof(T)) {
    T total, term;
    std::memcpy(&total, out.data() + at, sizeof(T));
    for (std::size_t m = 1; m < given.size(); ++m) {
      std::memcpy(&term, given[m].data() + at, sizeof(T));
      total += term;
    }
    std::memcpy(out.data() + at, &total, sizeof(T));
  }
  return out;
}

Bytes sum_bf16(const std::vector<Bytes>& given) {
  Bytes out(given[0].size());
  for (std::size_t at = 0; at + 2 <= out.size(); at += 2) {
    float total = 0;
    for (const Bytes& terms : given) {
      std::uint16_t term;
      std::memcpy(&term, terms.data() + at, 2);
      total += f32_of_bf16(term);
    }
    const std::uint16_t rounded = bf16_of_f32(total);
    std::memcpy(out.data() + at, &rounded, 2);
  }
  return out;
}

Bytes sum_bytes(DType dtype, const std::vector<Bytes>& given) {
  if (dtype == DType::bf16) return sum_bf16(given);
  if (dtype == DType::f32) return sum_bytes<float>(given);
  if (dtype == DType::f64) return sum_bytes<double>(given);
  return dtype == DType::i32 ? sum_bytes<std::uint32_t>(given) : sum_bytes<std::uint64_t>(given);
}

// Piece i of n equal pieces.
Bytes piece(const Bytes& whole, std::size_t i, std::size_t n) {
  const auto size = static_cast<std::ptrdiff_t>(whole.size() / n);
  const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(i) * size;
  return {begin, begin + size};
}

}  // namespace

Bytes collective_result(Opcode opcode, DType dtype, std::size_t root, std::size_t member, const std::vector<Bytes>& given) {
  Bytes out;
  switch (opcode) {
    case Opcode::all_reduce:
      return sum_bytes(dtype, given);
    case Opcode::reduce_scatter:
      return piece(sum_bytes(dtype, given), member, given.size());
    case Opcode::broadcast:
      return member == root ? out : given[root];
    default:
      for (const Bytes& from : given) {
        const Bytes part = opcode == Opcode::all_gather ? from : piece(from, member, given.size());
        out.insert(out.end(), part.begin(), part.end());
      }
      return out;
  }
}

}  // namespace penstock::test
