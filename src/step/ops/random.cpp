// SPDX-License-Identifier: Apache-2.0
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

// The places of a part that is cut along another dim than the rows: the attributes say of each axis that has cut it, the first axis first,
// that element i of what a member has of a row is element (i / inner) * whole + begin + i % inner of the row that is cut.
void require_places(const Op& op, Types operands) {
  const std::vector<std::int64_t> none;
  const auto inner = attribute_or(op, "inner", none), whole = attribute_or(op, "whole", none), begin = attribute_or(op, "begin", none);
  require(inner.size() == whole.size() && inner.size() == begin.size(), op, operands, "inner, whole and begin must be equally long");
  for (std::size_t i = 0; i < inner.size(); ++i)
    require(inner[i] >= 1 && inner[i] <= whole[i] && begin[i] >= 0 && begin[i] <= whole[i] - inner[i], op, operands,
            "inner elements from begin on must lie in a block of whole elements");
}

// (x, key, rows, positions?) -> y
std::vector<TensorType> infer_dropout(const Op& op, Types operands) {
  require_count(op, operands, 3, 4);
  require_floating(op, operands);
  const double p = number_attribute(op, "p");
  require(p >= 0 && p < 1, op, operands, "p must be in [0, 1)");
  require(operands[1] == TensorType{DType::i64, {}}, op, operands, "the key must be an i64 scalar");
  require(!operands[0].shape.empty() && operands[2] == TensorType{DType::i64, {operands[0].shape[0]}}, op, operands,
          "needs rows i64[first size of x]");
  if (operands.size() > 3) require(operands[3] == operands[2], op, operands, "needs positions i64[first size of x]");
  require_places(op, operands);
  return {operands[0]};
}

// (seed, step) -> key
std::vector<TensorType> infer_random_key(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  for (const TensorType& type : operands) require(type == TensorType{DType::i64, {}}, op, operands, "seed and step must be i64 scalars");
  attribute<std::int64_t>(op, "op");
  return {{DType::i64, {}}};
}

// The places of a mirrored part begin elsewhere in every second block.
std::optional<LayoutRow> layout_of_dropout(const LayoutSite& site, std::size_t operand, const Layout& split) {
  if (split.mirrored && split.dim != 0) return std::nullopt;
  return by<named<"r*,,r,r->r*">>(site, operand, split);
}

void local_dropout(const LocalSite& site, Op& local) {
  const Layout& split = site.row.operands[0];
  if (!split.is_split() || split.dim == 0) return;
  const LayoutView view = view_of(split, site.whole.operands[0].shape);
  const LayoutRange range = site.range(split, view.size);
  const auto append = [&](const char* name, std::int64_t elements) {
    auto values = attribute_or(site.whole.op, name, std::vector<std::int64_t>{});
    values.push_back(elements * view.inner);
    local.attributes[name] = std::move(values);
  };
  append("inner", range.size());
  append("whole", view.size);
  append("begin", range.begin);
}

// The mask is drawn again from the same key. Dropout is linear in x, so the cotangent passes through the same op.
Tensors dropout_vjp(const VjpArguments& a) {
  std::vector<Tensor> operands(a.operands.begin(), a.operands.end());
  operands[0] = a.cotangents[0];
  std::vector<Tensor> gradients(operands.size());
  gradients[0] = emit_all("dropout", operands, a.op.attributes)[0];
  return gradients;
}

}  // namespace

std::span<const OpDefinition> random_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "dropout",
       .infer = infer_dropout,
       .vjp = dropout_vjp,
       .flops = flops_by_result<20>,  // ten rounds of Philox give four draws
       .elementwise = true,
       .layout = layout_of_dropout,
       .local = local_dropout},
      {.name = "random_key", .infer = infer_random_key},
  };
  return all;
}

Tensor dropout(Tensor x, double p, Tensor key, Tensor rows, Tensor positions) {
  std::vector<Tensor> operands = {x, key, rows};
  if (positions) operands.push_back(positions);
  return emit_all("dropout", operands, {{"p", p}})[0];
}
Tensor random_key(Tensor seed, Tensor step, std::int64_t op) {
  return emit("random_key", {seed, step}, {{"op", op}});
}

}  // namespace penstock
