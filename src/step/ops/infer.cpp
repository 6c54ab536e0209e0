// SPDX-License-Identifier: Apache-2.0
#include "ops/infer.h"

#include <algorithm>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

void fail(const Op& op, Types operands, std::string_view rule, const std::string& hint) {
  std::vector<std::string> details;
  if (!operands.empty()) details.push_back("operands: " + join(operands, ", ", [](const TensorType& type) { return type.text(); }));
  if (!op.attributes.empty())
    details.push_back("attributes: " +
                      join(op.attributes, ", ", [](const auto& entry) { return concat(entry.first, "=", text_of(entry.second)); }));
  if (!op.origin.empty()) details.push_back("made in " + op.origin);
  if (!op.stage.empty()) details.push_back("stage " + op.stage);
  throw Error(concat(op.name, ": ", rule), details, hint);
}

void require(bool condition, const Op& op, Types operands, std::string_view rule) {
  if (!condition) fail(op, operands, rule);
}

void require_count(const Op& op, Types operands, std::size_t least, std::size_t most) {
  if (operands.size() >= least && operands.size() <= most) return;
  const std::string wanted = least == most ? concat(least) : concat(least, " to ", most);
  fail(op, operands, concat("takes ", wanted, " operands, not ", operands.size()));
}

void require_equal_dtypes(const Op& op, Types operands, std::size_t first) {
  for (std::size_t i = first + 1; i < operands.size(); ++i)
    if (operands[i].dtype != operands[first].dtype)
      fail(op, operands, concat("operands are ", name(operands[first].dtype), " and ", name(operands[i].dtype)),
           "casts are explicit: use to()");
}

void require_floating(const Op& op, Types operands, std::size_t index) {
  if (!is_floating(operands[index].dtype))
    fail(op, operands, concat("operand ", index, " must be floating, not ", name(operands[index].dtype)));
}

double number_attribute(const Op& op, std::string_view name) {
  const auto found = op.attributes.find(name);
  if (found != op.attributes.end())
    if (const auto* integer = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*integer);
  return attribute<double>(op, name);
}

double number_attribute_or(const Op& op, std::string_view name, double otherwise) {
  return op.attributes.contains(name) ? number_attribute(op, name) : otherwise;
}

Shape broadcast(const Op& op, Types operands) {
  std::size_t rank = 0;
  for (const TensorType& type : operands) rank = std::max(rank, type.shape.size());
  Shape out(rank, 1);
  for (const TensorType& type : operands) {
    const std::size_t offset = rank - type.shape.size();
    for (std::size_t i = 0; i < type.shape.size(); ++i) {
      std::int64_t& size = out[offset + i];
      if (size == 1) size = type.shape[i];
      if (type.shape[i] != 1 && type.shape[i] != size)
        fail(op, operands, concat("shapes do not broadcast: ", size, " and ", type.shape[i], " at dim ", offset + i));
    }
  }
  return out;
}

std::size_t dim_attribute(const Op& op, Types operands, std::string_view name, std::size_t rank) {
  const std::int64_t dim = wrap(attribute<std::int64_t>(op, name), static_cast<std::int64_t>(rank));
  if (dim < 0 || dim >= static_cast<std::int64_t>(rank)) fail(op, operands, concat(name, " is outside the ", rank, " dims of the operand"));
  return static_cast<std::size_t>(dim);
}

std::vector<std::int64_t> dims_attribute(const Op& op, Types operands, std::size_t rank) {
  std::vector<std::int64_t> dims = attribute_or(op, "dim", std::vector<std::int64_t>{});
  if (dims.empty())
    for (std::size_t i = 0; i < rank; ++i) dims.push_back(static_cast<std::int64_t>(i));
  for (std::int64_t& dim : dims) {
    dim = wrap(dim, static_cast<std::int64_t>(rank));
    if (dim < 0 || dim >= static_cast<std::int64_t>(rank)) fail(op, operands, concat("dim is outside the ", rank, " dims of the operand"));
  }
  std::sort(dims.begin(), dims.end());
  require(std::adjacent_find(dims.begin(), dims.end()) == dims.end(), op, operands, "a dim stands twice");
  return dims;
}

void require_shape(const Op& op, Types operands, const Shape& shape) {
  constexpr std::int64_t kMost = std::int64_t{1} << 48;
  std::int64_t elements = 1;
  for (std::int64_t size : shape) {
    require(size >= 0, op, operands, "a size is negative");
    require(!__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements) && elements <= kMost, op, operands,
            "the shape has more than 2^48 elements");
  }
}

std::vector<TensorType> infer_same(const Op& op, Types operands) {
  require(!operands.empty(), op, operands, "takes at least one operand");
  require_floating(op, operands);
  for (const TensorType& type : operands) require(type == operands[0], op, operands, "operands must have one type");
  return {operands[0]};
}

std::vector<TensorType> infer_unary(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  return infer_same(op, operands);
}

std::vector<TensorType> infer_pair(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  return infer_same(op, operands);
}

double flops_none(const Op&, Types, Types) {
  return 0;
}

}  // namespace penstock
