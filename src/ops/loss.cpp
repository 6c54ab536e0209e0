#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;

void require_classification(const Op& op, Types operands, const TensorType& logits, const TensorType& targets) {
  require(is_floating(logits.dtype) && logits.shape.size() == 2, op, operands, "needs floating logits[n, classes]");
  require(targets == TensorType{DType::i64, {logits.shape[0]}}, op, operands, "needs targets i64[n]");
  attribute<std::int64_t>(op, "ignore_index");
}

// (logits, targets) -> (loss, logsumexp[n])
std::vector<TensorType> infer_cross_entropy(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_classification(op, operands, operands[0], operands[1]);
  const DType dtype = statistic(operands[0].dtype);
  return {{dtype, {}}, {dtype, {operands[0].shape[0]}}};
}

// (dloss, logits, targets, logsumexp) -> dlogits
std::vector<TensorType> infer_cross_entropy_backward(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  const TensorType& logits = operands[1];
  require_classification(op, operands, logits, operands[2]);
  require(operands[0] == TensorType{statistic(logits.dtype), {}}, op, operands, "dloss must be a scalar of the loss's dtype");
  require(operands[3] == TensorType{statistic(logits.dtype), {logits.shape[0]}}, op, operands, "logsumexp does not fit to the logits");
  return {logits};
}

Tensors cross_entropy_vjp(const VjpArguments& a) {
  if (a.cotangents[1]) throw Error(a.op.name + ": its logsumexp has no gradient");
  return {emit("cross_entropy_backward", {a.cotangents[0], a.operands[0], a.operands[1], a.results[1]}, a.op.attributes), {}};
}

double flops_cross_entropy(const Op&, Types operands, Types) {
  return 12 * static_cast<double>(operands[0].elements());
}

double flops_cross_entropy_backward(const Op&, Types, Types results) {
  return 13 * static_cast<double>(results[0].elements());
}

}  // namespace

std::span<const OpDefinition> loss_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "cross_entropy",
       .infer = infer_cross_entropy,
       .vjp = cross_entropy_vjp,
       .flops = flops_cross_entropy,
       .layout = by<named<"nC,n->,n">>},
      {.name = "cross_entropy_backward",
       .infer = infer_cross_entropy_backward,
       .flops = flops_cross_entropy_backward,
       .layout = by<named<",nC,n->nC">>},
  };
  return all;
}

Tensor cross_entropy(Tensor logits, Tensor targets, std::int64_t ignore_index) {
  return emit("cross_entropy", {logits, targets}, {{"ignore_index", ignore_index}});
}

Tensor mse_loss(Tensor x, Tensor targets) {
  const Tensor difference = x - targets;
  return sum(difference * difference);
}

}  // namespace penstock
