// SPDX-License-Identifier: Apache-2.0
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// The type of a row's mean or reciprocal deviation: the operand's shape with a last dim of 1.
TensorType row_statistic(const TensorType& x) {
  TensorType out{statistic(x.dtype), x.shape};
  out.shape.back() = 1;
  return out;
}

void require_rows(const Op& op, Types operands, const TensorType& x) {
  require(is_floating(x.dtype), op, operands, "x must be floating");
  require(!x.shape.empty(), op, operands, "x must have a last dim");
}

void require_weight(const Op& op, Types operands, const TensorType& x, const TensorType& weight) {
  require(weight == TensorType{x.dtype, {x.shape.back()}}, op, operands,
          "weight and bias must have x's dtype and the shape [last dim of x]");
}

// Weight and bias of a layer norm may be wider than x, as its statistics are: it computes in f32 then.
void require_affine(const Op& op, Types operands, const TensorType& x, Types affine) {
  const bool wide = !affine.empty() && affine[0].dtype == statistic(x.dtype);
  for (const TensorType& type : affine) require_weight(op, operands, {wide ? statistic(x.dtype) : x.dtype, x.shape}, type);
}

// (x, weight, bias) or (x) -> (y, mean, rstd)
std::vector<TensorType> infer_layer_norm(const Op& op, Types operands) {
  require(operands.size() == 1 || operands.size() == 3, op, operands, "takes x, or x, weight and bias");
  const TensorType& x = operands[0];
  require_rows(op, operands, x);
  require_affine(op, operands, x, operands.subspan(1));
  number_attribute(op, "eps");
  return {x, row_statistic(x), row_statistic(x)};
}

// (dy, x, mean, rstd, weight, bias) -> (dx, dweight, dbias), or (dy, x, mean, rstd) -> (dx)
std::vector<TensorType> infer_layer_norm_backward(const Op& op, Types operands) {
  require(operands.size() == 4 || operands.size() == 6, op, operands, "takes dy, x, mean, rstd, and weight and bias or neither");
  const TensorType& x = operands[1];
  require_rows(op, operands, x);
  require(operands[0] == x, op, operands, "dy must have x's type");
  for (const TensorType& type : operands.subspan(2, 2)) require(type == row_statistic(x), op, operands, "mean and rstd do not fit to x");
  require_affine(op, operands, x, operands.subspan(4));
  if (operands.size() == 4) return {x};
  return {x, operands[4], operands[5]};
}

// (x, weight) -> (y, rstd)
std::vector<TensorType> infer_rms_norm(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_rows(op, operands, operands[0]);
  require_weight(op, operands, operands[0], operands[1]);
  number_attribute(op, "eps");
  return {operands[0], row_statistic(operands[0])};
}

// (dy, x, rstd, weight) -> (dx, dweight)
std::vector<TensorType> infer_rms_norm_backward(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  const TensorType& x = operands[1];
  require_rows(op, operands, x);
  require(operands[0] == x, op, operands, "dy must have x's type");
  require(operands[2] == row_statistic(x), op, operands, "rstd does not fit to x");
  require_weight(op, operands, x, operands[3]);
  return {x, operands[3]};
}

// The type of a channel's mean or reciprocal deviation, or of a weight that scales it.
TensorType by_channel(const TensorType& x, DType dtype) {
  return {dtype, {x.shape[1]}};
}

void require_channels(const Op& op, Types operands, const TensorType& x) {
  require(is_floating(x.dtype) && x.shape.size() == 4, op, operands, "needs floating x[n, channels, height, width]");
  require(x.elements() > x.shape[1], op, operands, "each channel needs more than one value");
}

// (x, weight, bias) -> (y, mean, rstd)
std::vector<TensorType> infer_batch_norm(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  const TensorType& x = operands[0];
  require_channels(op, operands, x);
  for (const TensorType& weight : operands.subspan(1))
    require(weight == by_channel(x, x.dtype), op, operands, "weight and bias must have x's dtype and the shape [channels]");
  number_attribute(op, "eps");
  const TensorType statistics = by_channel(x, statistic(x.dtype));
  return {x, statistics, statistics};
}

// (dy, x, mean, rstd, weight) -> (dx, dweight, dbias)
std::vector<TensorType> infer_batch_norm_backward(const Op& op, Types operands) {
  require_count(op, operands, 5, 5);
  const TensorType& x = operands[1];
  require_channels(op, operands, x);
  require(operands[0] == x, op, operands, "dy must have x's type");
  for (const TensorType& type : operands.subspan(2, 2))
    require(type == by_channel(x, statistic(x.dtype)), op, operands, "mean and rstd do not fit to x");
  require(operands[4] == by_channel(x, x.dtype), op, operands, "weight must have x's dtype and the shape [channels]");
  return {x, operands[4], operands[4]};
}

// x -> y, or (dy, y) -> dx
template <std::vector<TensorType> (*Infer)(const Op&, Types)>
std::vector<TensorType> infer_softmax(const Op& op, Types operands) {
  const std::vector<TensorType> out = Infer(op, operands);
  dim_attribute(op, operands, "dim", operands[0].shape.size());
  return out;
}

void require_value_only(const VjpArguments& a) {
  for (std::size_t i = 1; i < a.cotangents.size(); ++i)
    if (a.cotangents[i]) throw Error(a.op.name + ": its statistics have no gradient");
}

Tensors layer_norm_vjp(const VjpArguments& a) {
  require_value_only(a);
  // Frozen weights take no gradient: what flows through them meets the norm without weights, whose backward sums nothing over the rows.
  const Tensor dy = a.cotangents[0];
  const bool is_frozen = a.operands.size() > 1 && a.operands[1].dtype() == dy.dtype() && !a.wanted[1] && !a.wanted[2];
  if (is_frozen) return emit_all("native_layer_norm_backward", Tensors{dy * a.operands[1], a.operands[0], a.results[1], a.results[2]});
  Tensors operands = {dy, a.operands[0], a.results[1], a.results[2]};
  operands.insert(operands.end(), a.operands.begin() + 1, a.operands.end());
  return emit_all("native_layer_norm_backward", operands);
}

Tensors rms_norm_vjp(const VjpArguments& a) {
  require_value_only(a);
  const Tensor operands[] = {a.cotangents[0], a.operands[0], a.results[1], a.operands[1]};
  return emit_all("_fused_rms_norm_backward", operands);
}

Tensors batch_norm_vjp(const VjpArguments& a) {
  require_value_only(a);
  const Tensor operands[] = {a.cotangents[0], a.operands[0], a.results[1], a.results[2], a.operands[1]};
  return emit_all("native_batch_norm_backward", operands);
}

Tensors softmax_vjp(const VjpArguments& a) {
  return {emit("_softmax_backward_data", {a.cotangents[0], a.results[0]}, a.op.attributes)};
}

Tensors log_softmax_vjp(const VjpArguments& a) {
  return {emit("_log_softmax_backward_data", {a.cotangents[0], a.results[0]}, a.op.attributes)};
}

// Flops are counted roughly: the passes over the rows and their arithmetic.
constexpr OpDefinition normalisation(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp,
                                     LayoutRule layout) {
  return {.name = name, .infer = infer, .vjp = vjp, .flops = flops_by_operand<8>, .layout = layout};
}
constexpr OpDefinition normalisation_backward(std::string_view name, decltype(OpDefinition::infer) infer, LayoutRule layout) {
  return {.name = name, .infer = infer, .flops = flops_by_operand<14>, .layout = layout};
}

}  // namespace

std::span<const OpDefinition> normalisation_ops() {
  static constexpr OpDefinition all[] = {
      normalisation("native_layer_norm", infer_layer_norm, layer_norm_vjp, by<named<"*W,W->*W,*1">>),
      normalisation_backward("native_layer_norm_backward", infer_layer_norm_backward, by<named<"*W,*W,*1,*1,W->*W,W">>),
      normalisation("_fused_rms_norm", infer_rms_norm, rms_norm_vjp, by<named<"*W,W->*W,*1">>),
      normalisation_backward("_fused_rms_norm_backward", infer_rms_norm_backward, by<named<"*W,*W,*1,W->*W,W">>),
      normalisation("native_batch_norm", infer_batch_norm, batch_norm_vjp, by<named<"NcHW,c->NcHW,c">>),
      normalisation_backward("native_batch_norm_backward", infer_batch_norm_backward, by<named<"NcHW,NcHW,c->NcHW,c">>),
      normalisation("softmax", infer_softmax<infer_unary>, softmax_vjp, other_dims),
      normalisation_backward("_softmax_backward_data", infer_softmax<infer_pair>, other_dims),
      normalisation("log_softmax", infer_softmax<infer_unary>, log_softmax_vjp, other_dims),
      normalisation_backward("_log_softmax_backward_data", infer_softmax<infer_pair>, other_dims),
  };
  return all;
}

Tensor layer_norm(Tensor x, Tensor weight, Tensor bias, double eps) {
  if (weight || bias) return emit("native_layer_norm", {x, weight, bias}, {{"eps", eps}});
  return emit("native_layer_norm", {x}, {{"eps", eps}});
}

Tensor rms_norm(Tensor x, Tensor weight, double eps) {
  return emit("_fused_rms_norm", {x, weight}, {{"eps", eps}});
}
Tensor batch_norm(Tensor x, Tensor weight, Tensor bias, double eps) {
  return emit("native_batch_norm", {x, weight, bias}, {{"eps", eps}});
}
Tensor softmax(Tensor x, int dim) {
  return emit("softmax", {x}, {{"dim", wrap(dim, x.rank())}});
}
Tensor log_softmax(Tensor x, int dim) {
  return emit("log_softmax", {x}, {{"dim", wrap(dim, x.rank())}});
}

}  // namespace penstock
