// SPDX-License-Identifier: Apache-2.0
#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

// The matrix of which `x` is the transpose; none where it was not made so.
Tensor transpose_of(Tensor x) {
  const Op* op = made_by(x, "transpose");
  return op && x.rank() == 2 ? operand_of(x, *op, 0) : Tensor();
}

// x times the transpose of a weight is what Linear modules do.
Tensors matrix_product(const NamedCall& call) {
  const Tensor a = call.operand(0), b = call.operand(1), weight = transpose_of(b);
  return {weight && !transpose_of(a) ? linear(a, weight) : mm(a, b)};
}

// beta bias + alpha a b.
Tensors product_and_bias(const NamedCall& call) {
  for (const char* factor : {"alpha", "beta"})
    if (number_attribute_or(call.op, factor, 1) != 1) return {};
  const Tensor bias = call.operand(0), a = call.operand(1), b = call.operand(2), weight = transpose_of(b);
  return {weight && bias.rank() == 1 && bias.size(0) == b.size(1) ? linear(a, weight, bias) : addmm(bias, a, b)};
}

}  // namespace

std::span<const RenameRow> product_rows() {
  static constexpr RenameRow all[] = {{"aten::mm", matrix_product}, {"aten::bmm", binary<bmm>}, {"aten::addmm", product_and_bias}};
  return all;
}

}  // namespace penstock
