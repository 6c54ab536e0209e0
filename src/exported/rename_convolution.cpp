#include <algorithm>

#include "base/text.h"
#include "exported/rename_rows.h"
#include "ops/infer.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;
using Integers = std::vector<std::int64_t>;

bool are_ones(const Integers& numbers) {
  return std::ranges::all_of(numbers, [](std::int64_t n) { return n == 1; });
}

// One number stands for both directions; of a sequence's only direction, the width, the height has `otherwise`.
Integers pair_of(const Op& op, const char* name, bool of_sequence = false, std::int64_t otherwise = 1) {
  Integers numbers = attribute<Integers>(op, name);
  if (numbers.empty() || numbers.size() > 2) throw Error(concat(op.name, ": ", name, " is not of two"));
  if (of_sequence) return {otherwise, numbers[0]};
  if (numbers.size() == 1) numbers.push_back(numbers[0]);
  return numbers;
}

// Ours has no dilation and no groups, and is not transposed.
bool is_plain(const Op& op) {
  return are_ones(attribute<Integers>(op, "dilation")) && !attribute<bool>(op, "transposed") && attribute<std::int64_t>(op, "groups") == 1;
}

Attributes window_of(const Op& op, bool of_sequence) {
  return {{"stride", pair_of(op, "stride", of_sequence, 1)}, {"padding", pair_of(op, "padding", of_sequence, 0)}};
}

// A sequence [n, channels, length], or a weight for such, as an image of one row.
Tensor image(Tensor x) {
  return x.rank() == 3 ? unsqueeze(x, 2) : x;
}

// (x, weight, bias?) -> y
Tensors convolved(const NamedCall& call) {
  if (!is_plain(call.op)) return {};
  Tensors operands = {image(call.operand(0)), image(call.operand(1))};
  if (call.operand(2)) operands.push_back(call.operand(2));
  const Tensor y = emit_all("convolution", operands, window_of(call.op, call.operand(0).rank() == 3))[0];
  return {reshape(y, call.results[0].shape)};
}

// (dy, x, weight) -> those of dx, dweight, dbias that the mask asks for
Tensors convolved_backward(const NamedCall& call) {
  if (!is_plain(call.op)) return {};
  const Tensor dy = image(call.operand(0)), x = image(call.operand(1)), weight = image(call.operand(2));
  const Integers mask = output_mask(call.op);
  const auto with = [&](const char* name, const Shape& size) {
    Attributes attributes = window_of(call.op, call.operand(1).rank() == 3);
    attributes[name] = size;
    return attributes;
  };
  Tensors all(3);
  if (mask[0] != 0)
    all[0] = reshape(emit("convolution_backward_input", {dy, weight}, with("input_size", x.shape())), call.operand(1).shape());
  if (mask[1] != 0)
    all[1] = reshape(emit("convolution_backward_weight", {dy, x}, with("weight_size", weight.shape())), call.operand(2).shape());
  if (mask[2] != 0) all[2] = sum(dy, {0, 2, 3});
  return masked(call.op, all);
}

// A pool's window; nothing where ours has no such.
std::optional<Attributes> pool_of(const Op& op) {
  if (attribute_or(op, "ceil_mode", false) || !are_ones(attribute_or(op, "dilation", Integers()))) return std::nullopt;
  Attributes attributes = {{"kernel_size", pair_of(op, "kernel_size")}, {"padding", pair_of(op, "padding")}};
  const bool strided = !attribute_or(op, "stride", Integers()).empty();
  attributes["stride"] = pair_of(op, strided ? "stride" : "kernel_size");
  return attributes;
}

// x -> (y, indices)
Tensors pooled(const NamedCall& call) {
  const auto attributes = pool_of(call.op);
  return attributes ? emit_all("max_pool2d_with_indices", call.operands, *attributes) : Tensors();
}

// (dy, x, indices) -> dx
Tensors pooled_backward(const NamedCall& call) {
  auto attributes = pool_of(call.op);
  if (!attributes) return {};
  (*attributes)["input_size"] = call.operand(1).shape();
  return {emit("max_pool2d_with_indices_backward", {call.operand(0), call.operand(2)}, std::move(*attributes))};
}

}  // namespace

std::span<const RenameRow> convolution_rows() {
  static constexpr RenameRow all[] = {
      {"aten::convolution", convolved},
      {"aten::convolution_backward", convolved_backward},
      {"aten::max_pool2d_with_indices", pooled},
      {"aten::max_pool2d_with_indices_backward", pooled_backward},
  };
  return all;
}

}  // namespace penstock
