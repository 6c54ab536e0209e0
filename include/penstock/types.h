// SPDX-License-Identifier: Apache-2.0
// Element types, shapes and tensor types: what a value of a graph is.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

// The type of a tensor's elements: floating, whole (i64, i32) or true and false, of one byte.
enum class DType : std::uint8_t { f64, f32, bf16, f16, i64, i32, boolean };

inline constexpr int kDTypeCount = 7;  // dtypes are numbered 0 .. kDTypeCount-1

std::int64_t byte_size(DType dtype);  // of one element
std::string_view name(DType dtype);   // "f64", ..., "bool"
bool is_floating(DType dtype);        // f64, f32, bf16, f16
bool is_integer(DType dtype);         // i64, i32
// Sets `out` to the dtype of that name; false where there is none.
bool parse_dtype(std::string_view name, DType& out);

// The size of each dim, the outermost first.
using Shape = std::vector<std::int64_t>;

// A static, dense, row-major tensor type. A scalar has the empty shape.
struct TensorType {
  DType dtype = DType::f32;  // of each element
  Shape shape;               // empty: a scalar

  std::int64_t elements() const;                                        // the product of the shape's sizes
  std::int64_t bytes() const { return elements() * byte_size(dtype); }  // of the memory that a tensor takes
  std::string text() const;                                             // "f32[2,128]"
  bool operator==(const TensorType&) const = default;
};

}  // namespace penstock
