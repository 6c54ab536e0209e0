// SPDX-License-Identifier: Apache-2.0
#include "state/initialise.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "base/bf16.h"
#include "base/hash.h"
#include "base/text.h"
#include "penstock/error.h"
#include "state/draws.h"

namespace penstock {
namespace {

// Counts in units of the last bit of the half (f16); adding the count carries into the exponent field by itself.
std::uint16_t to_f16(float value) {
  const std::uint32_t sign = (std::bit_cast<std::uint32_t>(value) >> 16) & 0x8000u;
  const float size = std::abs(value);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | 0x7e00u);
  if (size >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7c00u);
  int exponent = -13;
  if (size > 0) std::frexp(size, &exponent);      // size < 2^exponent
  const int last = std::max(exponent - 11, -24);  // the exponent of the half's last bit
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, -last)));
  const auto normal = static_cast<std::uint32_t>(last + 24);  // 0: denormals and the first binade
  return static_cast<std::uint16_t>(sign | (steps + (normal << 10)));
}

double from_f16(std::uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) size = mantissa == 0 ? INFINITY : NAN;
  return (bits & 0x8000u) ? -size : size;
}

template <class T>
void put(std::span<std::byte> out, std::size_t index, T value) {
  std::memcpy(out.data() + index * sizeof value, &value, sizeof value);
}

template <class T>
T get(std::span<const std::byte> bytes, std::size_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof value, sizeof value);
  return value;
}

}  // namespace

void store_element(DType dtype, double value, std::span<std::byte> out, std::size_t index) {
  switch (dtype) {
    case DType::f64:
      return put(out, index, value);
    case DType::f32:
      return put(out, index, static_cast<float>(value));
    case DType::bf16:
      return put(out, index, bf16_of_f32(static_cast<float>(value)));
    case DType::f16:
      return put(out, index, to_f16(static_cast<float>(value)));
    case DType::i64:
      return put(out, index, static_cast<std::int64_t>(value));
    case DType::i32:
      return put(out, index, static_cast<std::int32_t>(value));
    case DType::boolean:
      return put(out, index, static_cast<std::uint8_t>(value != 0));
  }
}

double load_element(DType dtype, std::span<const std::byte> bytes, std::size_t index) {
  switch (dtype) {
    case DType::f64:
      return get<double>(bytes, index);
    case DType::f32:
      return static_cast<double>(get<float>(bytes, index));
    case DType::bf16:
      return static_cast<double>(f32_of_bf16(get<std::uint16_t>(bytes, index)));
    case DType::f16:
      return from_f16(get<std::uint16_t>(bytes, index));
    case DType::i64:
      return static_cast<double>(get<std::int64_t>(bytes, index));
    case DType::i32:
      return get<std::int32_t>(bytes, index);
    case DType::boolean:
      return get<std::uint8_t>(bytes, index) != 0;
  }
  return 0;
}

void initialise(const ParameterSpec& spec, std::int64_t seed, std::span<std::byte> out, std::int64_t begin) {
  const DType dtype = spec.type.dtype;
  const auto count = out.size() / static_cast<std::size_t>(byte_size(dtype));
  if (spec.initial.kind != Initialiser::Kind::normal) {
    const double value = spec.initial.kind == Initialiser::Kind::ones ? 1 : 0;
    for (std::size_t i = 0; i < count; ++i) store_element(dtype, value, out, i);
    return;
  }
  if (!is_floating(dtype)) throw Error(concat(spec.name, ": normal draws of ", spec.type.text()));
  Hash key;
  key.add(static_cast<std::uint64_t>(seed));
  key.add(spec.name);
  const auto first = static_cast<std::size_t>(begin), end = first + count;
  for (std::size_t i = first - first % 2; i < end; i += 2) {  // from an even index, as draws come in pairs
    const auto draws = normal_draws(key.value(), i / 2);
    for (std::size_t j = std::max(i, first); j < std::min(i + 2, end); ++j)
      store_element(dtype, draws[j - i] * spec.initial.deviation, out, j - first);
  }
}

}  // namespace penstock
