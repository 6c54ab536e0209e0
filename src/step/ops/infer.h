// SPDX-License-Identifier: Apache-2.0
// Helpers that the families' inference functions share: checks with one form of message, and shape rules.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/graph.h"

namespace penstock {

using Types = std::span<const TensorType>;
using Integers = std::vector<std::int64_t>;

// Throws Error: "<op>: <rule>", the operands' types and attributes, and the module that made the op.
[[noreturn]] void fail(const Op& op, Types operands, std::string_view rule, const std::string& hint = {});
void require(bool condition, const Op& op, Types operands, std::string_view rule);
void require_count(const Op& op, Types operands, std::size_t least, std::size_t most);
void require_equal_dtypes(const Op& op, Types operands, std::size_t first = 0);
void require_floating(const Op& op, Types operands, std::size_t index = 0);

// The value of a number attribute, written with or without a point.
double number_attribute(const Op& op, std::string_view name);
// The same, or `otherwise` where the op does not have it.
double number_attribute_or(const Op& op, std::string_view name, double otherwise);

// The broadcast shape by ATen's rule: sizes agree from the right, or are 1. Throws Error.
Shape broadcast(const Op& op, Types operands);

// A dim counted from the end becomes one counted from the front; not checked.
constexpr std::int64_t wrap(std::int64_t dim, std::int64_t rank) {
  return dim < 0 ? dim + rank : dim;
}
// The attribute `name` as a dim in [0, rank). Throws Error.
std::size_t dim_attribute(const Op& op, Types operands, std::string_view name, std::size_t rank);
// The attribute "dim" as sorted distinct dims; absent or empty: all of them. Throws Error.
std::vector<std::int64_t> dims_attribute(const Op& op, Types operands, std::size_t rank);
// Throws Error where a size is negative or the number of elements is beyond 2^48.
void require_shape(const Op& op, Types operands, const Shape& shape);

// The dtype in which statistics of `dtype` are kept: f64 for f64, else f32.
constexpr DType statistic(DType dtype) {
  return dtype == DType::f64 ? DType::f64 : DType::f32;
}

// Infers an op on any number of operands of one floating type; the result has that type too.
std::vector<TensorType> infer_same(const Op& op, Types operands);
// The same for exactly one operand, and for exactly two.
std::vector<TensorType> infer_unary(const Op& op, Types operands);
std::vector<TensorType> infer_pair(const Op& op, Types operands);

// Flops of an op that only moves data: none.
double flops_none(const Op& op, Types operands, Types results);
// A number for each element of an operand, or of result 0.
template <int Each, std::size_t Operand = 0>
double flops_by_operand(const Op&, Types operands, Types) {
  return Each * static_cast<double>(operands[Operand].elements());
}
template <int Each>
double flops_by_result(const Op&, Types, Types results) {
  return Each * static_cast<double>(results[0].elements());
}

}  // namespace penstock
