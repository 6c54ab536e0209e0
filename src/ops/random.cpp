#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;

// (x, key, rows) -> y
std::vector<TensorType> infer_dropout(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  require_floating(op, operands);
  const double p = number_attribute(op, "p");
  require(p >= 0 && p < 1, op, operands, "p must be in [0, 1)");
  require(operands[1] == TensorType{DType::i64, {}}, op, operands, "the key must be an i64 scalar");
  require(!operands[0].shape.empty() && operands[2] == TensorType{DType::i64, {operands[0].shape[0]}}, op, operands,
          "needs rows i64[first size of x]");
  return {operands[0]};
}

// (seed, step) -> key
std::vector<TensorType> infer_random_key(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  for (const TensorType& type : operands) require(type == TensorType{DType::i64, {}}, op, operands, "seed and step must be i64 scalars");
  attribute<std::int64_t>(op, "op");
  return {{DType::i64, {}}};
}

// The mask is drawn again from the same key. Dropout is linear in x, so the cotangent passes through the same op.
Tensors dropout_vjp(const VjpArguments& a) {
  return {emit("dropout", {a.cotangents[0], a.operands[1], a.operands[2]}, a.op.attributes), {}, {}};
}

// Flops: ten rounds of Philox give four draws.
double flops_dropout(const Op&, Types, Types results) {
  return 20 * static_cast<double>(results[0].elements());
}

}  // namespace

std::span<const OpDefinition> random_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "dropout", .infer = infer_dropout, .vjp = dropout_vjp, .flops = flops_dropout, .elementwise = true},
      {.name = "random_key", .infer = infer_random_key},
  };
  return all;
}

Tensor dropout(Tensor x, double p, Tensor key, Tensor rows) {
  return emit("dropout", {x, key, rows}, {{"p", p}});
}
Tensor random_key(Tensor seed, Tensor step, std::int64_t op) {
  return emit("random_key", {seed, step}, {{"op", op}});
}

}  // namespace penstock
