// SPDX-License-Identifier: Apache-2.0
#include "models/layers.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "penstock/error.h"

namespace penstock {

Tensor split_heads(Tensor x, std::int64_t heads) {
  return transpose(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), 1, 2);
}

Tensor join_heads(Tensor x) {
  const Tensor positions = transpose(x, 1, 2);
  return reshape(positions, {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

std::vector<Tensor> split_qkv(Tensor qkv, std::int64_t heads) {
  std::vector<Tensor> parts = split(qkv, qkv.size(2) / 3, 2);
  for (Tensor& part : parts) part = split_heads(part, heads);
  return parts;
}

Tensor self_attention(Tensor qkv, std::int64_t heads, bool is_causal) {
  const std::vector<Tensor> parts = split_qkv(qkv, heads);
  return join_heads(scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal));
}

Tensor causal_self_attention(Tensor qkv, std::int64_t heads) {
  return self_attention(qkv, heads, true);
}

Tensor residual(Tensor x, bool causal) {
  return constrain(x, {"batch", "sequence", "embed"}, causal);
}

namespace {

Tensor in_at_least_f32(Tensor x) {
  return x.dtype() == DType::f64 ? x : to(x, DType::f32);
}

}  // namespace

Tensor rotary(Tensor x, Tensor positions) {
  const std::int64_t half = x.size(3) / 2;
  const DType dtype = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  const Tensor rates = exp(arange(x, half, dtype) * (-std::log(10000.0) / static_cast<double>(half)));
  const Tensor places = positions ? unsqueeze(to(positions, dtype), 1) : arange(x, x.size(2), dtype);
  const Tensor angles = unsqueeze(places, -1) * rates, c = to(cos(angles), x.dtype()), s = to(sin(angles), x.dtype());
  const Tensor first = slice(x, 3, 0, half), second = slice(x, 3, half, 2 * half);
  return cat({first * c - second * s, second * c + first * s}, 3);
}

Tensor token_loss(Tensor logits, Tensor targets) {
  const Tensor rows = reshape(logits, {-1, logits.size(-1)});
  return cross_entropy(rows, reshape(targets, {-1}));
}

Tensor part_of_token_loss(Tensor logits, Tensor targets, std::int64_t begin) {
  const Tensor rows = reshape(logits, {-1, logits.size(-1)});
  return cross_entropy_parts(in_at_least_f32(rows), reshape(targets, {-1}), begin);
}

std::string stage_name(std::int64_t number) {
  return std::to_string(number);
}

std::int64_t spread(std::int64_t i, std::int64_t parts, std::int64_t stages, std::int64_t first) {
  return first + i * stages / parts;
}

std::int64_t AttentionCut::groups() const {
  const std::int64_t groups = stages - 2 * attentions;
  return groups > 0 && attentions % groups == 0 ? groups : 0;
}

AttentionStages AttentionCut::of(std::int64_t i, std::int64_t whole) const {
  if (!is_apart()) return {stage_name(whole), stage_name(whole), stage_name(whole), stage_name(whole)};
  const std::int64_t first = 2 * i + i / (attentions / groups());
  return {stage_name(first), stage_name(product_in_attention ? first + 1 : first), stage_name(first + 1), stage_name(first + 2)};
}

std::string BranchStages::of(std::int64_t branch, std::int64_t layer) const {
  if (stages <= branches) return stage_name(branch * stages / branches);
  const std::int64_t first = branch * (stages - 1) / branches, end = (branch + 1) * (stages - 1) / branches;
  return stage_name(spread(layer, layers, end - first, first));
}

nn::LayerDims layer_dims(std::int64_t i, std::int64_t layers) {
  if (i % 2 == 1) return {{"mlp"}, {"embed"}};
  return {{"embed"}, {i + 1 < layers ? "mlp" : "embed"}};
}

nn::Linear dense(ParameterList& specs, std::string path, const nn::LinearShape& shape) {
  return {specs, std::move(path), shape, 1 / std::sqrt(3.0 * static_cast<double>(shape.in))};
}

nn::Linear relu_layer(ParameterList& specs, std::string path, nn::LinearShape shape) {
  shape.bias = false;
  return {specs, std::move(path), shape, std::sqrt(2.0 / static_cast<double>(shape.in))};
}

nn::Linear last_layer(ParameterList& specs, std::string path, nn::LinearShape shape) {
  shape.bias = false;
  return {specs, std::move(path), shape, 1 / std::sqrt(static_cast<double>(shape.in))};
}

DenseBranch::DenseBranch(ParameterList& specs, const std::string& path, std::int64_t layers, std::int64_t width) {
  for (std::int64_t layer = 0; layer < layers; ++layer)
    layers_.push_back(relu_layer(specs, concat(path, layer), {width, width, layer_dims(layer, layers)}));
}

Tensor DenseBranch::operator()(const Parameters& p, Tensor input, DType compute, const BranchStages& stages, std::int64_t number) const {
  Tensor x;
  for (std::int64_t layer = 0; layer < std::ssize(layers_); ++layer) {
    const Stage stage(stages.of(number, layer));
    const nn::Linear& dense = layers_[static_cast<std::size_t>(layer)];
    const Origin origin(dense.path());
    if (layer == 0) x = to(input, compute);
    x = relu(dense(p, x));
  }
  return x;
}

std::vector<DataPort> image_ports(std::int64_t size, std::int64_t classes, DType dtype) {
  return {{.name = "label", .type = {DType::i64, {}}, .kind = DataPort::Kind::indices, .below = classes, .of = {}},
          {.name = "image", .type = {dtype, {kColours, size, size}}, .kind = DataPort::Kind::normal, .below = 0, .of = {"label"}}};
}

namespace {

// `others`: numbers of stages that are possible besides, or "".
void check_stages(std::string_view model, const ModelOptions& options, std::int64_t most, std::string_view what,
                  const std::string& others) {
  if (options.stages >= 1 && options.stages <= most) return;
  throw Error(concat("model ", quote(model), " with ", what, " cannot be cut into ", options.stages, " stages"), {},
              concat(most == 1 ? "use 1 stage (--actors 1), or a larger model" : concat("use 1 to ", most, " stages (actors times chunks)"),
                     others));
}

}  // namespace

void check_stages(std::string_view model, const ModelOptions& options, std::int64_t most, std::string_view what) {
  check_stages(model, options, most, what, "");
}

void check_stages(std::string_view model, const ModelOptions& options, std::int64_t most, std::string_view what, const AttentionCut& cut) {
  if (cut.is_apart()) return;
  check_stages(model, options, most, what, concat("; a schedule that sets attentions apart, as helixpipe, takes ", 2 * cut.attentions + 1));
}

void check_word(std::string_view option, const std::string& value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return;
  throw Error(concat("model option ", quote(option), " is ", quote(value)), {}, concat("use ", join(known, " or ")));
}

void check_heads(std::int64_t width, std::int64_t heads) {
  if (width % heads == 0) return;
  throw Error(concat("width ", width, " is not divisible by ", heads, " heads"), {},
              concat("use a width of ", width / heads * heads + heads, ", or a number of heads that divides ", width));
}

}  // namespace penstock
