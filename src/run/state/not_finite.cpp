// SPDX-License-Identifier: Apache-2.0
#include "state/not_finite.h"

#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/text.h"
#include "state/initialise.h"

namespace penstock {
namespace {

// Returns how many elements have an exponent of ones only, as infinities and NaNs have. It reads bits because all
// checkpoints go through it.
template <class Bits>
std::size_t count(std::span<const std::byte> bytes, Bits exponent) {
  std::size_t out = 0;
  for (std::size_t i = 0; i < bytes.size(); i += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + i, sizeof bits);
    out += (bits & exponent) == exponent ? 1 : 0;
  }
  return out;
}

std::size_t count_of(DType dtype, std::span<const std::byte> bytes) {
  switch (dtype) {
    case DType::f64:
      return count<std::uint64_t>(bytes, 0x7ff0'0000'0000'0000u);
    case DType::f32:
      return count<std::uint32_t>(bytes, 0x7f80'0000u);
    case DType::bf16:
      return count<std::uint16_t>(bytes, 0x7f80u);
    case DType::f16:
      return count<std::uint16_t>(bytes, 0x7c00u);
    default:
      return 0;
  }
}

}  // namespace

std::string not_finite(const FileTensor& tensor) {
  const DType dtype = tensor.type.dtype;
  std::size_t found = 0, first = 0;
  double value = 0;
  for_each_part(tensor, [&](std::size_t begin, std::span<const std::byte> part) {
    const std::size_t here = is_floating(dtype) ? count_of(dtype, part) : 0;
    if (found == 0 && here > 0) {
      std::size_t at = 0;
      while (std::isfinite(load_element(dtype, part, at))) ++at;
      first = begin / byte_size(dtype) + at;
      value = load_element(dtype, part, at);
    }
    found += here;
  });
  if (found == 0) return {};
  return concat(found, found == 1 ? " value that is" : " values that are", " not finite, the first (element ", first, ") is ",
                number(value));
}

}  // namespace penstock
