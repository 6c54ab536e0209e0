// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

//   where(%mask, 0, -inf), added to the scores, of a constant mask
Kept kept_by(const NamedCall& call, std::size_t place) {
  if (call.operands.size() <= place || !call.operand(place)) return Kept::all;
  const Op* added = made_by(call.operand(place), "where");
  if (!added) return Kept::other;
  const auto number = [&](std::size_t i) { return constant_number(operand_of(call.operand(place), *added, i)); };
  if (number(1) != 0 || !number(2) || !std::isinf(*number(2)) || *number(2) > 0) return Kept::other;
  return call.constants.kept_by(operand_of(call.operand(place), *added, 0));
}

struct OurAttention {
  std::vector<Tensor> operands;  // the first of the op by name, and a bias where one remains
  Attributes attributes;
};

// Attention with a mask behind the `first` operands, where there is one; nothing where ours draws no such.
std::optional<OurAttention> ours(const NamedCall& call, std::size_t first, Tensor q) {
  if (number_attribute_or(call.op, "dropout_p", 0) != 0) return std::nullopt;
  const bool causal = attribute_or(call.op, "is_causal", false);
  const Kept kept = kept_by(call, first);
  OurAttention out;
  for (std::size_t i = 0; i < first; ++i) out.operands.push_back(call.operand(i));
  if (kept == Kept::other) {
    Tensor bias = call.operand(first);
    while (bias.rank() < 4) bias = unsqueeze(bias, 0);
    out.operands.push_back(bias);
  }
  out.attributes["is_causal"] = causal || kept == Kept::causal;
  out.attributes["scale"] = number_attribute_or(call.op, "scale", 1 / std::sqrt(static_cast<double>(q.size(-1))));
  return out;
}

// (q, k, v, mask?) -> (out, logsumexp)
Tensors attention(const NamedCall& call) {
  auto attention = ours(call, 3, call.operand(0));
  return attention ? emit_all("scaled_dot_product_attention", attention->operands, std::move(attention->attributes)) : Tensors();
}

// (dout, q, k, v, out, logsumexp, mask?) -> (dq, dk, dv)
Tensors attention_backward(const NamedCall& call) {
  auto attention = ours(call, 6, call.operand(1));
  return attention ? emit_all("scaled_dot_product_attention_backward", attention->operands, std::move(attention->attributes)) : Tensors();
}

}  // namespace

std::span<const RenameRow> attention_rows() {
  static constexpr RenameRow all[] = {
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention_backward},
  };
  return all;
}

}  // namespace penstock
