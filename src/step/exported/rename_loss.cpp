// SPDX-License-Identifier: Apache-2.0
// Losses of classes. The mean over the targets that count becomes a sum that is divided by their number, so that the number can be that of
// a whole batch (batch_counts.h).
#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

constexpr std::int64_t kMean = 1, kSum = 2;  // the attribute "reduction"

struct Reduction {
  std::int64_t kind, ignore_index;
};

Reduction reduction_of(const NamedCall& call) {
  return {attribute<std::int64_t>(call.op, "reduction"), attribute<std::int64_t>(call.op, "ignore_index")};
}

// The weights of the targets that count, added up; without weights, how many they are.
Tensor weight_of_targets(Tensor targets, Tensor weights, std::int64_t ignored, DType dtype) {
  const Tensor counts = ne(targets, static_cast<double>(ignored));
  if (!weights) return to(sum(counts), dtype);
  const Tensor classes = where(counts, targets, full(targets, {}, 0, targets.dtype()));
  const Tensor each = reshape(embedding(unsqueeze(weights, -1), classes), targets.shape());
  return to(sum(each * to(counts, each.dtype())), dtype);
}

// The scores of which `probabilities` are the log_softmax over dim 1 of two; none where they are not.
Tensor scores_of(Tensor probabilities) {
  const Op* softmax = made_by(probabilities, "log_softmax");
  if (!softmax || probabilities.rank() != 2 || attribute<std::int64_t>(*softmax, "dim") != 1) return {};
  return operand_of(probabilities, *softmax, 0);
}

// The op as it stands, but as a sum.
Tensors summed_by_name(const NamedCall& call, Tensor first) {
  Op op = call.op;
  op.attributes["reduction"] = kSum;
  op.operands.clear();
  for (const Tensor& operand : call.operands)
    if (operand) op.operands.emplace_back(operand.value());
  op.operands[0] = ValueId(first.value());
  Tensors results;
  for (ValueId value : call.builder.append_typed(std::move(op), call.results)) results.emplace_back(&call.builder, value.value);
  return results;
}

// (log probabilities, targets, weights?) -> (loss, total_weight)
Tensors nll(const NamedCall& call) {
  const auto [kind, ignored] = reduction_of(call);
  if (kind != kMean && kind != kSum) return {};
  const Tensor probabilities = call.operand(0), targets = call.operand(1), weights = call.operand(2);
  const DType dtype = call.results[0].dtype;
  const Tensor scores = scores_of(probabilities), weight = weight_of_targets(targets, weights, ignored, statistic(dtype));
  Tensor loss;
  if (scores && !weights)
    loss = cross_entropy(scores, targets, ignored);
  else
    loss = cast(summed_by_name(call, probabilities)[0], statistic(dtype));
  return {cast(kind == kMean ? loss / weight : loss, dtype), cast(weight, dtype)};
}

// (dloss, log probabilities, targets, weights?, total_weight) -> of the log probabilities
Tensors nll_backward(const NamedCall& call) {
  const auto [kind, ignored] = reduction_of(call);
  if (kind != kMean) return {};
  const Tensor dloss = call.operand(0);
  return summed_by_name(call, cast(unrounded(dloss) / unrounded(call.operand(4)), dloss.dtype()));
}

// The cross_entropy of these scores that has been made before; null: none.
const Op* cross_entropy_of(const NamedCall& call, Tensor scores, ValueId targets, std::int64_t ignored) {
  for (const Op& op : call.builder.graph.ops)
    if (op.name == "cross_entropy" && op.operands[0].value == scores.value() && op.operands[1] == targets &&
        attribute<std::int64_t>(op, "ignore_index") == ignored)
      return &op;
  return nullptr;
}

//   %1 = aten::nll_loss_backward(%dloss, %log, %targets, %count) {reduction=2}; %2 = aten::_log_softmax_backward_data(%1, %log)
//   ~~>  %2 = cross_entropy_backward(%dloss, %scores, %targets, %logsumexp)
Tensor cross_entropy_backward(const NamedCall& call) {
  const Tensor probabilities = call.operand(1), scores = scores_of(probabilities);
  const Op* nll = made_by(call.operand(0), "aten::nll_loss_backward");
  if (!scores || !nll || call.readers[0] != 1 || nll->operands.size() != 4 || nll->operands[1].value != probabilities.value()) return {};
  if (attribute<std::int64_t>(*nll, "reduction") != kSum) return {};
  const std::int64_t ignored = attribute<std::int64_t>(*nll, "ignore_index");
  const Op* forward = cross_entropy_of(call, scores, nll->operands[2], ignored);
  if (!forward) return {};
  const auto tensor = [&](ValueId value) { return Tensor(&call.builder, value.value); };
  const Tensor targets = tensor(nll->operands[2]), logsumexp = tensor(forward->results[1]);
  return emit("cross_entropy_backward", {unrounded(tensor(nll->operands[0])), scores, targets, logsumexp}, {{"ignore_index", ignored}});
}

// (dy, y) -> dx
Tensors log_softmax_backward(const NamedCall& call) {
  if (attribute_or(call.op, "input_dtype", call.results[0].dtype) != call.results[0].dtype) return {};
  if (const Tensor fused = cross_entropy_backward(call)) return {fused};
  return along_dim(call, "_log_softmax_backward_data");
}

}  // namespace

std::span<const RenameRow> loss_rows() {
  static constexpr RenameRow all[] = {
      {"aten::nll_loss_forward", nll},
      {"aten::nll_loss2d_forward", nll},
      {"aten::nll_loss_backward", nll_backward},
      {"aten::nll_loss2d_backward", nll_backward},
      {"aten::_log_softmax_backward_data", log_softmax_backward},
  };
  return all;
}

}  // namespace penstock
