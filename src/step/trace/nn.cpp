// SPDX-License-Identifier: Apache-2.0
// The modules of nn. A parameter has the master dtype, an activation the dtype that the model chooses.
#include <algorithm>

#include "base/text.h"
#include "base/words.h"
#include "penstock/error.h"
#include "penstock/trace.h"

namespace penstock::nn {

namespace {

// Limits beyond which no machine has room for the model, or time to compile it: 1 TiB of f32 in one tensor, some 8,000 layers of a
// transformer.
constexpr double kMostElements = 1.0 * (std::int64_t{1} << 38);
constexpr std::size_t kMostParameters = 100'000;

// A parameter none of whose dims has a name has no list of them.
void add(ParameterList& specs, ParameterSpec spec) {
  double elements = 1;
  for (const std::int64_t size : spec.type.shape) elements *= static_cast<double>(size);
  if (elements > kMostElements)
    throw Error(concat("parameter ", quote(spec.name), " has ", elements, " elements; it may have ", kMostElements), {},
                "make the model's width, rows or vocabulary smaller");
  if (specs.list.size() >= kMostParameters)
    throw Error(concat("the model has more than ", kMostParameters, " parameter tensors: ", quote(spec.name), " is one too many"), {},
                "make it of fewer layers or branches");
  if (std::ranges::all_of(spec.dims, [](const DimName& dim) { return dim.name.empty(); })) spec.dims.clear();
  specs.list.push_back(std::move(spec));
}

void add_normal(ParameterList& specs, std::string name, Shape shape, double deviation, std::vector<DimName> dims) {
  add(specs, {std::move(name), {specs.dtype, std::move(shape)}, {Initialiser::Kind::normal, deviation}, true, std::move(dims)});
}

void add_constant(ParameterList& specs, std::string name, Initialiser::Kind kind, Shape shape, std::vector<DimName> dims) {
  add(specs, {std::move(name), {specs.dtype, std::move(shape)}, {kind, 0}, false, std::move(dims)});
}

void add_bias(ParameterList& specs, const Module& of, std::int64_t size, const DimName& dim) {
  add_constant(specs, of.at("bias"), Initialiser::Kind::zeros, {size}, {dim});
}

void add_scale(ParameterList& specs, const Module& of, std::int64_t size, const DimName& dim) {
  add_constant(specs, of.at("weight"), Initialiser::Kind::ones, {size}, {dim});
}

}  // namespace

Linear::Linear(ParameterList& specs, std::string path, const LinearShape& shape, double deviation)
    : Module(std::move(path)), bias_(shape.bias) {
  add_normal(specs, at("weight"), {shape.out, shape.in}, deviation, {shape.dims.out, shape.dims.in});
  if (bias_) add_bias(specs, *this, shape.out, shape.dims.out);
}

Tensor Linear::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype());
  return bias_ ? linear(x, weight, to(p[at("bias")], x.dtype())) : linear(x, weight);
}

Conv1D::Conv1D(ParameterList& specs, std::string path, const LinearShape& shape, double deviation) : Module(std::move(path)) {
  add_normal(specs, at("weight"), {shape.in, shape.out}, deviation, {shape.dims.in, shape.dims.out});
  add_bias(specs, *this, shape.out, shape.dims.out);
}

Tensor Conv1D::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype()), bias = to(p[at("bias")], x.dtype());
  Shape shape = x.shape();
  shape.back() = weight.size(1);
  return reshape(addmm(bias, reshape(x, {-1, weight.size(0)}), weight), shape);
}

BatchedLinear::BatchedLinear(ParameterList& specs, std::string path, const BatchedLinearShape& shape, double deviation)
    : Module(std::move(path)) {
  const auto& [count, in, out, count_dim, dims] = shape;
  add_normal(specs, at("weight"), {count, in, out}, deviation, {count_dim, dims.in, dims.out});
  add_constant(specs, at("bias"), Initialiser::Kind::zeros, {count, out}, {count_dim, dims.out});
}

Tensor BatchedLinear::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype()), bias = to(p[at("bias")], x.dtype());
  return bmm(x, weight) + unsqueeze(bias, 1);
}

LayerNorm::LayerNorm(ParameterList& specs, std::string path, std::int64_t width, double eps, const DimName& dim)
    : Module(std::move(path)), eps_(eps) {
  add_scale(specs, *this, width, dim);
  add_bias(specs, *this, width, dim);
}

Tensor LayerNorm::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = p[at("weight")], bias = p[at("bias")];
  return layer_norm(x, weight, bias, eps_);
}

RMSNorm::RMSNorm(ParameterList& specs, std::string path, std::int64_t width, double eps, const DimName& dim)
    : Module(std::move(path)), eps_(eps) {
  add_scale(specs, *this, width, dim);
}

Tensor RMSNorm::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = p[at("weight")];
  return to(rms_norm(to(x, weight.dtype()), weight, eps_), x.dtype());
}

GroupNorm::GroupNorm(ParameterList& specs, std::string path, const GroupNormShape& shape) : Module(std::move(path)), shape_(shape) {
  add_scale(specs, *this, shape.channels, shape.dim);
  add_bias(specs, *this, shape.channels, shape.dim);
}

Tensor GroupNorm::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = p[at("weight")];
  return to(group_norm(to(x, weight.dtype()), shape_.groups, weight, p[at("bias")], shape_.eps), x.dtype());
}

Embedding::Embedding(ParameterList& specs, std::string path, const EmbeddingShape& shape, double deviation) : Module(std::move(path)) {
  add_normal(specs, at("weight"), {shape.rows, shape.width}, deviation, {shape.rows_dim, shape.width_dim});
}

Tensor Embedding::operator()(const Parameters& p, Tensor indices) const {
  const Origin origin(path());
  return embedding(p[at("weight")], indices);
}

EmbeddingBag::EmbeddingBag(ParameterList& specs, std::string path, const EmbeddingShape& shape, double deviation)
    : Module(std::move(path)) {
  add_normal(specs, at("weight"), {shape.rows, shape.width}, deviation, {shape.rows_dim, shape.width_dim});
}

Tensor EmbeddingBag::operator()(const Parameters& p, Tensor indices) const {
  const Origin origin(path());
  return embedding_bag(p[at("weight")], indices);
}

Conv2d::Conv2d(ParameterList& specs, std::string path, const Conv2dShape& shape, double deviation)
    : Module(std::move(path)), shape_(shape) {
  if (shape.groups < 1 || shape.in % shape.groups != 0)
    throw Error(concat("Conv2d ", quote(this->path()), ": ", shape.in, " channels do not divide into ", shape.groups, " groups"));
  add_normal(specs, at("weight"), {shape.out, shape.in / shape.groups, shape.kernel, shape.kernel}, deviation,
             {shape.dims.out, shape.dims.in, {}, {}});
  if (shape.bias) add_bias(specs, *this, shape.out, shape.dims.out);
}

Tensor Conv2d::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype());
  return conv2d(x, weight, shape_.bias ? to(p[at("bias")], x.dtype()) : Tensor(),
                {.stride = {shape_.stride}, .padding = {shape_.padding}, .dilation = {shape_.dilation}, .groups = shape_.groups});
}

BatchNorm2d::BatchNorm2d(ParameterList& specs, std::string path, std::int64_t channels, double eps, const DimName& dim)
    : Module(std::move(path)), eps_(eps) {
  add_scale(specs, *this, channels, dim);
  add_bias(specs, *this, channels, dim);
}

Tensor BatchNorm2d::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = p[at("weight")];
  return to(batch_norm(to(x, weight.dtype()), weight, p[at("bias")], eps_), x.dtype());
}

namespace {

AttentionHeads checked(AttentionHeads shape, const std::string& path) {
  if (shape.kv_heads == 0) shape.kv_heads = shape.heads;
  if (shape.heads < 1 || shape.width % shape.heads != 0)
    throw Error(concat("Attention ", quote(path), ": ", shape.heads, " heads do not divide a width of ", shape.width));
  if (shape.kv_heads < 1 || shape.heads % shape.kv_heads != 0)
    throw Error(concat("Attention ", quote(path), ": ", shape.kv_heads, " heads of k and v do not divide ", shape.heads, " of q"));
  return shape;
}

// The map to so many heads.
LinearShape map_in(const AttentionHeads& shape, std::int64_t heads) {
  return {shape.width, shape.width / shape.heads * heads, {{shape.embed}, {shape.heads_dim, 1, heads}}, shape.bias};
}

// [batch, length, heads * n] -> [batch, heads, length, n]
Tensor by_heads(Tensor x, std::int64_t heads) {
  return transpose(reshape(x, {x.size(0), x.size(1), heads, -1}), 1, 2);
}

Tensor activated(Tensor x, const std::string& activation) {
  if (activation == "relu") return relu(x);
  if (activation == "silu") return silu(x);
  return gelu(x, activation == "gelu" ? "none" : "tanh");
}

}  // namespace

Attention::Attention(ParameterList& specs, std::string path, const AttentionHeads& shape, double deviation)
    : Module(std::move(path)),
      shape_(checked(shape, this->path())),
      q_(specs, at("q_proj"), map_in(shape_, shape_.heads), deviation),
      k_(specs, at("k_proj"), map_in(shape_, shape_.kv_heads), deviation),
      v_(specs, at("v_proj"), map_in(shape_, shape_.kv_heads), deviation),
      o_(specs, at("o_proj"), {shape.width, shape.width, {{shape.heads_dim, 1, shape.heads}, {shape.embed}}, shape.bias}, deviation) {}

Tensor Attention::operator()(const Parameters& p, Tensor x, const AttentionOptions& options, Tensor memory) const {
  const Origin origin(path());
  const Tensor from = memory ? memory : x;
  AttentionOptions with = options;
  with.enable_gqa = true;
  const Tensor q = by_heads(q_(p, x), shape_.heads), k = by_heads(k_(p, from), shape_.kv_heads), v = by_heads(v_(p, from), shape_.kv_heads);
  return o_(p, reshape(transpose(scaled_dot_product_attention(q, k, v, with), 1, 2), x.shape()));
}

MLP::MLP(ParameterList& specs, std::string path, const MLPShape& shape, double deviation)
    : Module(std::move(path)),
      shape_(shape),
      up_(specs, at("up_proj"), {shape.width, shape.hidden, shape.dims, shape.bias}, deviation),
      gate_(shape.gated ? std::optional<Linear>(std::in_place, specs, at("gate_proj"),
                                                LinearShape{shape.width, shape.hidden, shape.dims, shape.bias}, deviation)
                        : std::nullopt),
      down_(specs, at("down_proj"), {shape.hidden, shape.width, {shape.dims.out, shape.dims.in}, shape.bias}, deviation) {
  const std::vector<std::string> known = {"relu", "gelu", "gelu_tanh", "silu"};
  if (std::ranges::find(known, shape.activation) == known.end())
    throw Error(concat("MLP ", quote(this->path()), ": no activation ", quote(shape.activation)), {},
                did_you_mean(shape.activation, known));
}

Tensor MLP::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor up = up_(p, x);
  return down_(p, gate_ ? activated((*gate_)(p, x), shape_.activation) * up : activated(up, shape_.activation));
}

}  // namespace penstock::nn
