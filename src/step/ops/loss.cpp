// SPDX-License-Identifier: Apache-2.0
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Where the logits are those of some classes of all, "begin" is the first of them.
void require_classification(const Op& op, Types operands, const TensorType& logits, const TensorType& targets) {
  require(is_floating(logits.dtype) && logits.shape.size() == 2, op, operands, "needs floating logits[n, classes]");
  require(targets == TensorType{DType::i64, {logits.shape[0]}}, op, operands, "needs targets i64[n]");
  require(attribute_or(op, "begin", std::int64_t{0}) >= 0, op, operands, "begin is negative");
}

// (logits, targets) -> (loss, logsumexp[n])
std::vector<TensorType> infer_cross_entropy(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_classification(op, operands, operands[0], operands[1]);
  attribute<std::int64_t>(op, "ignore_index");
  const DType dtype = statistic(operands[0].dtype);
  return {{dtype, {}}, {dtype, {operands[0].shape[0]}}};
}

// (dloss, logits, targets, logsumexp) -> dlogits
std::vector<TensorType> infer_cross_entropy_backward(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  const TensorType& logits = operands[1];
  require_classification(op, operands, logits, operands[2]);
  attribute<std::int64_t>(op, "ignore_index");
  require(operands[0] == TensorType{statistic(logits.dtype), {}}, op, operands, "dloss must be a scalar of the loss's dtype");
  require(operands[3] == TensorType{statistic(logits.dtype), {logits.shape[0]}}, op, operands, "logsumexp does not fit to the logits");
  return {logits};
}

// (logits, targets) -> [parts, 2, n]: for each range of classes (the first from class "begin" on, each up to its end in "ends", counted in
// these logits) the logsumexp of every row, and the logit of its target, 0 where that is in another range.
std::vector<TensorType> infer_cross_entropy_parts(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_classification(op, operands, operands[0], operands[1]);
  const Integers& ends = attribute<Integers>(op, "ends");
  std::int64_t last = 0;
  for (const std::int64_t end : ends) {
    require(end > last, op, operands, "ends must grow, from 1 on");
    last = end;
  }
  require(last > 0 && last == operands[0].shape[1], op, operands, "the last end must be the number of classes");
  return {{statistic(operands[0].dtype), {std::ssize(ends), 2, operands[0].shape[0]}}};
}

// (dparts, logits, targets, parts) -> dlogits
std::vector<TensorType> infer_cross_entropy_parts_backward(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  const std::vector<TensorType> parts = infer_cross_entropy_parts(op, operands.subspan(1, 2));
  require(operands[0] == parts[0] && operands[3] == parts[0], op, operands, "the parts do not fit to the logits");
  return {operands[1]};
}

// (parts[parts, 2, n], targets) -> (loss, logsumexp[n]), as cross_entropy gives them of logits of so many "classes"
std::vector<TensorType> infer_cross_entropy_join(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_floating(op, operands);
  const Shape& shape = operands[0].shape;
  require(shape.size() == 3 && shape[0] >= 1 && shape[1] == 2, op, operands, "needs parts[parts, 2, n]");
  require(operands[1] == TensorType{DType::i64, {shape[2]}}, op, operands, "needs targets i64[n]");
  require(operands[0].dtype == statistic(operands[0].dtype), op, operands, "parts must be f32 or f64");
  attribute<std::int64_t>(op, "ignore_index");
  require(attribute<std::int64_t>(op, "classes") > 0, op, operands, "classes must be positive");
  return {{operands[0].dtype, {}}, {operands[0].dtype, {shape[2]}}};
}

// The classes are cut where the parts end, so that each member makes its part.
std::optional<LayoutRow> layout_of_parts(const LayoutSite& site, std::size_t operand, const Layout& split) {
  if (operand == 1 || split.dim == 0) return by<named<"nC,n->P2n">>(site, operand, split);
  const Integers& ends = attribute<Integers>(site.op, "ends");
  if (split.outer != 1 || std::ssize(ends) != site.members) return std::nullopt;
  for (std::int64_t m = 0; m < site.members; ++m)
    if (range_of(split, site.operands[0].shape[1], site.members, m).end != ends[m]) return std::nullopt;
  return LayoutRow{{split, kWhole}, {split_layout(0, 1, site.members, site.members)}};
}

// A member's classes are one range of all.
std::optional<LayoutRow> layout_of_backward(const LayoutSite& site, std::size_t operand, const Layout& split) {
  if (operand == 1 && split.dim == 1 && split.outer != 1) return std::nullopt;
  return by<named<",nc,n->nc">>(site, operand, split);
}

// Says where the member's classes begin, where they are split: those of operand `Logits`.
template <std::size_t Logits>
void local_classes(const LocalSite& site, Op& local) {
  const Layout& split = site.row.operands[Logits];
  if (!split.is_split() || split.dim != 1) return;
  const std::int64_t begin = site.range(split, site.whole.operands[Logits].shape[1]).begin;
  local.attributes["begin"] = attribute_or(site.whole.op, "begin", std::int64_t{0}) + begin;
  if (local.attributes.contains("ends")) local.attributes["ends"] = Integers{site.operands[Logits].shape[1]};
}

// (x, targets) -> the loss of each element; "reduction" is ATen's number for none
std::vector<TensorType> infer_binary_cross_entropy(const Op& op, Types operands) {
  require(attribute<std::int64_t>(op, "reduction") == 0, op, operands, "reduction must be 0: the loss of each element");
  return infer_pair(op, operands);
}

// (dy, x, targets) -> dx
std::vector<TensorType> infer_binary_cross_entropy_backward(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  require(attribute<std::int64_t>(op, "reduction") == 0, op, operands, "reduction must be 0: the loss of each element");
  return infer_same(op, operands);
}

// The attributes of an op whose tensor of weights, at this place, is absent.
Attributes without_weights(std::int64_t place) {
  return {{"reduction", std::int64_t{0}}, {"none", Integers{place}}};
}

Tensors binary_cross_entropy_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0], x = a.operands[0], targets = a.operands[1];
  Tensors out(2);
  if (a.wanted[0]) out[0] = emit("binary_cross_entropy_backward", {dy, x, targets}, without_weights(3));
  if (a.wanted[1]) out[1] = dy * (log1p(neg(x)) - log(x));
  return out;
}

Tensors cross_entropy_vjp(const VjpArguments& a) {
  if (a.cotangents[1]) throw Error(a.op.name + ": its logsumexp has no gradient");
  return {emit("cross_entropy_backward", {a.cotangents[0], a.operands[0], a.operands[1], a.results[1]}, a.op.attributes), {}};
}

Tensors cross_entropy_parts_vjp(const VjpArguments& a) {
  return {emit("cross_entropy_parts_backward", {a.cotangents[0], a.operands[0], a.operands[1], a.results[0]}, a.op.attributes), {}};
}

// The loss of a row is its logsumexp, of which each part has a share, less the logit of its target.
Tensors cross_entropy_join_vjp(const VjpArguments& a) {
  if (a.cotangents[1]) throw Error(a.op.name + ": its logsumexp has no gradient");
  const Tensor parts = a.operands[0], targets = a.operands[1];
  const auto ignored = static_cast<double>(attribute<std::int64_t>(a.op, "ignore_index"));
  const Tensor weight = a.cotangents[0] * to(ne(targets, ignored), parts.dtype());
  const Tensor dlogsumexp = exp(select(parts, 1, 0) - a.results[1]) * weight;
  return {stack({dlogsumexp, expand(neg(weight), dlogsumexp.shape())}, 1), {}};
}

constexpr OpDefinition classification(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp,
                                      LayoutRule layout, LocalRule local = nullptr) {
  return {.name = name, .infer = infer, .vjp = vjp, .flops = flops_by_operand<12>, .layout = layout, .local = local};
}
constexpr OpDefinition classification_backward(std::string_view name, decltype(OpDefinition::infer) infer, LayoutRule layout,
                                               LocalRule local = nullptr) {
  return {.name = name, .infer = infer, .flops = flops_by_result<13>, .layout = layout, .local = local};
}

}  // namespace

std::span<const OpDefinition> loss_ops() {
  static constexpr OpDefinition all[] = {
      classification("cross_entropy", infer_cross_entropy, cross_entropy_vjp, by<named<"nC,n->,n">>),
      classification_backward("cross_entropy_backward", infer_cross_entropy_backward, layout_of_backward, local_classes<1>),
      classification("cross_entropy_join", infer_cross_entropy_join, cross_entropy_join_vjp, by<named<"P2n,n->,n">>),
      classification("cross_entropy_parts", infer_cross_entropy_parts, cross_entropy_parts_vjp, layout_of_parts, local_classes<0>),
      classification_backward("cross_entropy_parts_backward", infer_cross_entropy_parts_backward, by<named<"P2n,nC,n,P2n->nC">>),
      {.name = "binary_cross_entropy",
       .infer = infer_binary_cross_entropy,
       .vjp = binary_cross_entropy_vjp,
       .elementwise = true,
       .layout = all_dims},
      {.name = "binary_cross_entropy_backward", .infer = infer_binary_cross_entropy_backward, .elementwise = true, .layout = all_dims},
  };
  return all;
}

Tensor cross_entropy(Tensor logits, Tensor targets, std::int64_t ignore_index) {
  return emit("cross_entropy", {logits, targets}, {{"ignore_index", ignore_index}});
}

Tensor cross_entropy_parts(Tensor logits, Tensor targets, std::int64_t begin) {
  return emit("cross_entropy_parts", {logits, targets}, {{"ends", Integers{logits.size(1)}}, {"begin", begin}});
}

Tensor cross_entropy_join(Tensor parts, Tensor targets, std::int64_t classes, std::int64_t ignore_index) {
  return emit("cross_entropy_join", {parts, targets}, {{"classes", classes}, {"ignore_index", ignore_index}});
}

Tensor mse_loss(Tensor x, Tensor targets) {
  const Tensor difference = x - targets;
  return sum(difference * difference);
}

Tensor l1_loss(Tensor x, Tensor targets) {
  return sum(abs(x - targets));
}

Tensor binary_cross_entropy(Tensor x, Tensor targets) {
  return sum(emit("binary_cross_entropy", {x, targets}, without_weights(2)));
}

// (1 - t) x + w log(1 + exp(-x)), where w is 1, or 1 + (p - 1) t with weights p of the targets that are 1; the logarithm as in softplus.
Tensor binary_cross_entropy_with_logits(Tensor x, Tensor targets, Tensor pos_weight) {
  const Tensor zero = full(x, {}, 0, x.dtype());
  const Tensor soft = maximum(neg(x), zero) + log1p(exp(neg(abs(x))));
  const Tensor weighed = pos_weight ? soft * ((pos_weight - 1) * targets + 1) : soft;
  return sum((neg(targets) + 1) * x + weighed);
}

// A target of zero adds nothing.
Tensor kl_div(Tensor x, Tensor targets, bool log_target) {
  if (log_target) return sum(exp(targets) * (targets - x));
  const Tensor counts = gt(targets, 0), number = full(targets, {}, 1, targets.dtype());
  const Tensor entropy = where(counts, targets * log(where(counts, targets, number)), number - 1);
  return sum(entropy - targets * x);
}

}  // namespace penstock
