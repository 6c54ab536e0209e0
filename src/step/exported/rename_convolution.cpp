// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.h"
#include "exported/rename_rows.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

bool are_ones(const Integers& numbers) {
  return std::ranges::all_of(numbers, [](std::int64_t n) { return n == 1; });
}

// A number for each dim of places; one number stands for all of them.
Integers numbers_of(const Op& op, const char* name, std::size_t dims) {
  Integers numbers = attribute<Integers>(op, name);
  if (numbers.size() == 1) numbers.resize(dims, numbers[0]);
  if (numbers.size() != dims) throw Error(concat(op.name, ": ", name, " is not of ", dims));
  return numbers;
}

// The attributes of a window that our op is given; those that change nothing are left out.
Attributes window_of(const Op& op, std::size_t dims) {
  Attributes window = {{"stride", numbers_of(op, "stride", dims)}, {"padding", numbers_of(op, "padding", dims)}};
  if (const Integers dilation = numbers_of(op, "dilation", dims); !are_ones(dilation)) window["dilation"] = dilation;
  if (const auto groups = attribute<std::int64_t>(op, "groups"); groups != 1) window["groups"] = groups;
  if (!attribute<bool>(op, "transposed")) return window;
  window["transposed"] = true;
  window["output_padding"] = numbers_of(op, "output_padding", dims);
  return window;
}

std::size_t dims_of(Tensor x) {
  return static_cast<std::size_t>(std::max(x.rank() - 2, 0));
}

// (x, weight, bias?) -> y
Tensors convolved(const NamedCall& call) {
  Tensors operands = {call.operand(0), call.operand(1)};
  if (call.operand(2)) operands.push_back(call.operand(2));
  return emit_all("convolution", operands, window_of(call.op, dims_of(call.operand(0))));
}

// (dy, x, weight) -> those of dx, dweight, dbias that the mask asks for
Tensors convolved_backward(const NamedCall& call) {
  const Tensor dy = call.operand(0), x = call.operand(1), weight = call.operand(2);
  const Integers mask = output_mask(call.op);
  const Attributes window = window_of(call.op, dims_of(x));
  Tensors all(3);
  if (mask[0] != 0) all[0] = emit("convolution_backward_input", {dy, weight}, with(window, "input_size", x.shape()));
  if (mask[1] != 0) all[1] = emit("convolution_backward_weight", {dy, x}, with(window, "weight_size", weight.shape()));
  Integers dims = {0};
  for (int dim = 2; dim < dy.rank(); ++dim) dims.push_back(dim);
  if (mask[2] != 0) all[2] = sum(dy, dims);
  return masked(call.op, all);
}

Attributes window_of_pool(const Op& op) {
  const bool strided = !attribute_or(op, "stride", Integers()).empty(), padded = !attribute_or(op, "padding", Integers()).empty();
  return {{"kernel_size", numbers_of(op, "kernel_size", 2)},
          {"stride", numbers_of(op, strided ? "stride" : "kernel_size", 2)},
          {"padding", padded ? numbers_of(op, "padding", 2) : Integers{0, 0}}};
}

// A pool's window; nothing where ours has no such.
std::optional<Attributes> pool_of(const Op& op) {
  if (attribute_or(op, "ceil_mode", false) || !are_ones(attribute_or(op, "dilation", Integers()))) return std::nullopt;
  return window_of_pool(op);
}

// The same of means; a divisor of one's own ours does not have.
std::optional<Attributes> means_of(const Op& op) {
  if (op.attributes.contains("divisor_override")) return std::nullopt;
  Attributes attributes = window_of_pool(op);
  attributes["ceil_mode"] = attribute_or(op, "ceil_mode", false);
  attributes["count_include_pad"] = attribute_or(op, "count_include_pad", true);
  return attributes;
}

// Means of windows: (x) -> y, or (dy, x) -> dx.
template <TextArgument Name>
Tensors averaged(const NamedCall& call) {
  const auto attributes = means_of(call.op);
  return attributes ? emit_all(Name.text, call.operands, *attributes) : Tensors();
}

// x -> (y, indices)
Tensors pooled(const NamedCall& call) {
  const auto attributes = pool_of(call.op);
  return attributes ? emit_all("max_pool2d_with_indices", call.operands, *attributes) : Tensors();
}

// (dy, x, indices) -> dx
Tensors pooled_backward(const NamedCall& call) {
  const auto attributes = pool_of(call.op);
  if (!attributes) return {};
  return {emit("max_pool2d_with_indices_backward", {call.operand(0), call.operand(2)},
               with(*attributes, "input_size", call.operand(1).shape()))};
}

}  // namespace

std::span<const RenameRow> convolution_rows() {
  static constexpr RenameRow all[] = {
      {"aten::convolution", convolved},
      {"aten::convolution_backward", convolved_backward},
      {"aten::max_pool2d_with_indices", pooled},
      {"aten::max_pool2d_with_indices_backward", pooled_backward},
      {"aten::avg_pool2d", averaged<"avg_pool2d">},
      {"aten::avg_pool2d_backward", averaged<"avg_pool2d_backward">},
  };
  return all;
}

}  // namespace penstock
