// SPDX-License-Identifier: Apache-2.0
// Values of a graph that are the same in every run, as masks over positions are.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ops/builder.h"

namespace penstock {

// A tensor of whole numbers or truth values (0 and 1), row-major.
struct ConstantTensor {
  Shape shape;
  std::vector<std::int32_t> values;
};

// The element at an index of a shape to which the tensor broadcasts.
std::int64_t element(const ConstantTensor& x, const std::vector<std::int64_t>& index);

// Whether it broadcasts to this shape.
bool broadcasts(const ConstantTensor& x, const Shape& shape);

// Calls f(index) for each index of the shape, row after row, as long as it gives true; whether all did.
template <class F>
bool for_each_index(const Shape& shape, F f) {
  std::vector<std::int64_t> index(shape.size(), 0);
  std::int64_t elements = 1;
  for (std::int64_t size : shape) elements *= size;
  for (std::int64_t e = 0; e < elements; ++e) {
    if (!f(std::as_const(index))) return false;
    for (std::size_t d = shape.size(); d-- > 0 && ++index[d] == shape[d];) index[d] = 0;
  }
  return true;
}

// Which keys queries attend to, by a mask [..., queries, keys] that is true where they do. Causal: query i to the keys 0 .. i, of equally
// many.
enum class Kept : std::uint8_t { all, causal, other };

// Computes constants as they are asked for, and keeps them.
class Constants {
 public:
  // The value of x where it is made of nothing but full, arange and cumsum, comparisons, sums and products of integers and bools, and of
  // ops that move elements; null where it depends on an input, on another op, or where a step has more than 2^24 elements or one beyond 32
  // bits.
  const ConstantTensor* value_of(Tensor x);
  // Other where the mask is no constant.
  Kept kept_by(Tensor mask);

 private:
  std::optional<ConstantTensor> compute(Tensor x);

  std::map<std::int32_t, std::optional<ConstantTensor>> known_;  // by value
  std::map<std::int32_t, Kept> kept_;                            // by a mask's value
};

}  // namespace penstock
