// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

// Ours normalises over the last dim.
bool is_over_last_dim(const NamedCall& call) {
  return attribute<Integers>(call.op, "normalized_shape").size() == 1;
}

// The weight and the bias: both or neither, where one alone is joined by a constant that changes nothing.
Tensors weight_and_bias(Tensor x, Tensor weight, Tensor bias) {
  if (!weight && !bias) return {};
  const auto constant = [&](double value) { return full(x, {x.size(-1)}, value, x.dtype()); };
  return {weight ? weight : constant(1), bias ? bias : constant(0)};
}

// The results in their declared dtypes: ATen rounds statistics to x's.
Tensors as_declared(const NamedCall& call, Tensors results) {
  for (std::size_t i = 0; i < results.size() && i < call.results.size(); ++i) results[i] = cast(results[i], call.results[i].dtype);
  return results;
}

// (x, weight?, bias?) -> (y, mean, rstd)
Tensors layer_norm_of(const NamedCall& call) {
  if (!is_over_last_dim(call)) return {};
  Tensors operands = {call.operand(0)};
  for (const Tensor& more : weight_and_bias(call.operand(0), call.operand(1), call.operand(2))) operands.push_back(more);
  return as_declared(call, emit_all("native_layer_norm", operands, {{"eps", number_attribute(call.op, "eps")}}));
}

// (dy, x, mean, rstd, weight?, bias?) -> those of dx, dweight, dbias that the mask asks for
Tensors layer_norm_backward(const NamedCall& call) {
  if (!is_over_last_dim(call)) return {};
  Tensors operands = {call.operand(0), call.operand(1), unrounded(call.operand(2)), unrounded(call.operand(3))};
  for (const Tensor& more : weight_and_bias(call.operand(1), call.operand(4), call.operand(5))) operands.push_back(more);
  Tensors all = emit_all("native_layer_norm_backward", operands);
  all.resize(3);
  return masked(call.op, all);
}

// x[n, channels, ...] as images, which ours are.
Tensor images(Tensor x) {
  return reshape(x, {x.size(0), x.size(1), x.rank() == 2 ? 1 : -1, x.rank() < 4 ? 1 : x.size(-1)});
}

// The running statistic behind a micro-batch.
Tensor moved(Tensor running, Tensor statistic_of_batch, double momentum) {
  return running * (1 - momentum) + cast(statistic_of_batch, running.dtype()) * momentum;
}

// (x, weight?, bias?, running mean, running variance) -> (y, mean, rstd, running mean, running variance), by statistics of the micro-batch.
// The variance of which it keeps the reciprocal root is that of the values, the running one that of what they are drawn from.
Tensors batch_norm_of(const NamedCall& call) {
  if (!attribute_or(call.op, "training", false)) return {};
  const Tensor x = call.operand(0);
  const double eps = number_attribute(call.op, "eps"), momentum = number_attribute(call.op, "momentum");
  const auto constant = [&](double value) { return full(x, {x.size(1)}, value, x.dtype()); };
  const Tensor weight = call.operand(1) ? call.operand(1) : constant(1), bias = call.operand(2) ? call.operand(2) : constant(0);
  const Tensor normalised[] = {images(x), weight, bias};
  Tensors out = emit_all("native_batch_norm", normalised, {{"eps", eps}});
  out[0] = reshape(out[0], x.shape());
  const double values = static_cast<double>(x.type().elements()) / static_cast<double>(x.size(1));
  const Tensor variance = (pow(out[2], -2) - eps) * (values / (values - 1));
  out.push_back(moved(call.operand(3), out[1], momentum));
  out.push_back(moved(call.operand(4), variance, momentum));
  return as_declared(call, out);
}

// Statistics of channels, in the dtype that they are kept in, beside x[n, channels, ...].
Tensor beside(Tensor statistic, Tensor x) {
  Shape shape(static_cast<std::size_t>(x.rank()), 1);
  shape[1] = x.size(1);
  return reshape(to(statistic, penstock::statistic(x.dtype())), shape);
}

// x by its running statistics: 0 and 1 over the channel but for those.
Tensor by_running(Tensor x, Tensor mean, Tensor variance, double eps) {
  return (to(x, penstock::statistic(x.dtype())) - beside(mean, x)) * rsqrt(beside(variance, x) + eps);
}

// (x, weight?, bias?, running mean, running variance) -> (y, and two that nobody reads)
Tensors batch_norm_by_running(const NamedCall& call) {
  const Tensor x = call.operand(0);
  Tensor y = by_running(x, call.operand(3), call.operand(4), number_attribute(call.op, "eps"));
  if (call.operand(1)) y = y * beside(call.operand(1), x);
  if (call.operand(2)) y = y + beside(call.operand(2), x);
  Tensors out = {to(y, x.dtype())};
  for (std::size_t i = 1; i < call.results.size(); ++i) out.push_back(full(x, call.results[i].shape, 0, call.results[i].dtype));
  return out;
}

// The gradient of that.
Tensors batch_norm_by_running_backward(const NamedCall& call) {
  const Tensor x = call.operand(1), mean = call.operand(3), variance = call.operand(4);
  const double eps = number_attribute(call.op, "eps");
  const Tensor dy = to(call.operand(0), penstock::statistic(x.dtype()));
  const Tensor scaled = call.operand(2) ? dy * beside(call.operand(2), x) : dy;
  std::vector<std::int64_t> others = {0};
  for (std::int64_t dim = 2; dim < x.rank(); ++dim) others.push_back(dim);
  const Tensors all = {to(scaled * rsqrt(beside(variance, x) + eps), x.dtype()), sum(dy * by_running(x, mean, variance, eps), others),
                       sum(dy, others)};
  return as_declared(call, masked(call.op, all));
}

// (dy, x, weight?, running mean?, running variance?, mean, rstd) -> those of dx, dweight, dbias that the mask asks for
Tensors batch_norm_backward(const NamedCall& call) {
  if (!attribute_or(call.op, "train", false)) return batch_norm_by_running_backward(call);
  const Tensor dy = call.operand(0), x = call.operand(1);
  const Tensor weight = call.operand(2) ? call.operand(2) : full(x, {x.size(1)}, 1, x.dtype());
  const Tensor operands[] = {images(dy), images(x), unrounded(call.operand(5)), unrounded(call.operand(6)), weight};
  Tensors all = emit_all("native_batch_norm_backward", operands);
  all[0] = reshape(all[0], x.shape());
  return masked(call.op, all);
}

// (x, weight?, bias?) -> (y, mean, rstd), by groups of channels
Tensors group_norm_of(const NamedCall& call) {
  const Tensor x = call.operand(0);
  const std::int64_t groups = attribute<std::int64_t>(call.op, "group");
  const Tensor rows = reshape(x, {x.size(0), groups, -1});
  Tensors out = emit_all("native_layer_norm", {&rows, 1}, {{"eps", number_attribute(call.op, "eps")}});
  Shape by_channel(static_cast<std::size_t>(x.rank()) - 1, 1);
  by_channel[0] = x.size(1);
  out[0] = reshape(out[0], x.shape());
  if (const Tensor weight = call.operand(1)) out[0] = out[0] * reshape(weight, by_channel);
  if (const Tensor bias = call.operand(2)) out[0] = out[0] + reshape(bias, by_channel);
  for (const std::size_t i : {1, 2}) out[i] = reshape(out[i], {x.size(0), groups});
  return as_declared(call, out);
}

// x -> y, where rows that are minus infinity all along dim give zeros
Tensors safe_softmax(const NamedCall& call) {
  const Tensor x = cast(call.operand(0), call.results[0].dtype);
  const int dim = static_cast<int>(attribute<std::int64_t>(call.op, "dim"));
  const Tensor nothing = eq(amax(x, {dim}, true), -std::numeric_limits<double>::infinity());
  return {masked_fill(softmax(x, dim), nothing, 0)};
}

template <TextArgument Name>
Tensors softmax_of(const NamedCall& call) {
  return attribute_or(call.op, "half_to_float", false) ? Tensors() : along_dim(call, Name.text);
}

}  // namespace

std::span<const RenameRow> normalisation_rows() {
  static constexpr RenameRow all[] = {
      {"aten::native_layer_norm", layer_norm_of},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::_native_batch_norm_legit_functional", batch_norm_of},
      {"aten::_native_batch_norm_legit_no_training", batch_norm_by_running},
      {"aten::native_batch_norm_backward", batch_norm_backward},
      {"aten::native_group_norm", group_norm_of},
      {"aten::_safe_softmax", safe_softmax},
      {"aten::_softmax", softmax_of<"softmax">},
      {"aten::_softmax_backward_data", softmax_of<"_softmax_backward_data">},
      {"aten::_log_softmax", softmax_of<"log_softmax">},
  };
  return all;
}

}  // namespace penstock
