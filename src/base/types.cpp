// SPDX-License-Identifier: Apache-2.0
#include "penstock/types.h"

#include <array>

namespace penstock {
namespace {

struct DTypeInfo {
  std::string_view name;
  std::int64_t bytes;
};

// The entries stand in the order of DType.
constexpr std::array<DTypeInfo, kDTypeCount> kDTypes = {
    {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"f16", 2}, {"i64", 8}, {"i32", 4}, {"bool", 1}}};

}  // namespace

std::int64_t byte_size(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].bytes;
}

std::string_view name(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)].name;
}

bool is_floating(DType dtype) {
  return dtype <= DType::f16;
}

bool is_integer(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32;
}

bool parse_dtype(std::string_view name, DType& out) {
  for (std::size_t i = 0; i < kDTypes.size(); ++i)
    if (kDTypes[i].name == name) {
      out = static_cast<DType>(i);
      return true;
    }
  return false;
}

std::int64_t TensorType::elements() const {
  std::int64_t product = 1;
  for (std::int64_t size : shape) product *= size;
  return product;
}

std::string TensorType::text() const {
  std::string out{name(dtype)};
  out += '[';
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? "," : "") + std::to_string(shape[i]);
  return out + ']';
}

}  // namespace penstock
