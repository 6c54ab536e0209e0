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

void add(std::vector<ParameterSpec>& specs, ParameterSpec spec) {
  double elements = 1;
  for (const std::int64_t size : spec.type.shape) elements *= static_cast<double>(size);
  if (elements > kMostElements)
    throw Error(concat("parameter ", quote(spec.name), " has ", elements, " elements; it may have ", kMostElements), {},
                "make the model's width, rows or vocabulary smaller");
  if (specs.size() >= kMostParameters)
    throw Error(concat("the model has more than ", kMostParameters, " parameter tensors: ", quote(spec.name), " is one too many"), {},
                "make it of fewer layers or branches");
  specs.push_back(std::move(spec));
}

// A parameter none of whose dims has a name has no list of them.
std::vector<DimName> named(std::vector<DimName> dims) {
  if (std::all_of(dims.begin(), dims.end(), [](const DimName& dim) { return dim.name.empty(); })) dims.clear();
  return dims;
}

void add_normal(std::vector<ParameterSpec>& specs, std::string name, TensorType type, double deviation, std::vector<DimName> dims) {
  add(specs, {std::move(name), std::move(type), {Initialiser::Kind::normal, deviation}, true, named(std::move(dims))});
}

void add_constant(std::vector<ParameterSpec>& specs, std::string name, TensorType type, Initialiser::Kind kind, std::vector<DimName> dims) {
  add(specs, {std::move(name), std::move(type), {kind, 0}, false, named(std::move(dims))});
}

}  // namespace

Linear::Linear(std::vector<ParameterSpec>& specs, std::string path, std::int64_t in, std::int64_t out, double deviation, bool bias,
               DType dtype, const DimName& in_dim, const DimName& out_dim)
    : Module(std::move(path)), bias_(bias) {
  add_normal(specs, at("weight"), {dtype, {out, in}}, deviation, {out_dim, in_dim});
  if (bias) add_constant(specs, at("bias"), {dtype, {out}}, Initialiser::Kind::zeros, {out_dim});
}

Tensor Linear::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype());
  return bias_ ? linear(x, weight, to(p[at("bias")], x.dtype())) : linear(x, weight);
}

Conv1D::Conv1D(std::vector<ParameterSpec>& specs, std::string path, std::int64_t in, std::int64_t out, double deviation, DType dtype,
               const DimName& in_dim, const DimName& out_dim)
    : Module(std::move(path)) {
  add_normal(specs, at("weight"), {dtype, {in, out}}, deviation, {in_dim, out_dim});
  add_constant(specs, at("bias"), {dtype, {out}}, Initialiser::Kind::zeros, {out_dim});
}

Tensor Conv1D::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype()), bias = to(p[at("bias")], x.dtype());
  Shape shape = x.shape();
  shape.back() = weight.size(1);
  return reshape(addmm(bias, reshape(x, {-1, weight.size(0)}), weight), shape);
}

BatchedLinear::BatchedLinear(std::vector<ParameterSpec>& specs, std::string path, std::int64_t count, std::int64_t in, std::int64_t out,
                             double deviation, DType dtype, const DimName& count_dim, const DimName& in_dim, const DimName& out_dim)
    : Module(std::move(path)) {
  add_normal(specs, at("weight"), {dtype, {count, in, out}}, deviation, {count_dim, in_dim, out_dim});
  add_constant(specs, at("bias"), {dtype, {count, out}}, Initialiser::Kind::zeros, {count_dim, out_dim});
}

Tensor BatchedLinear::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype()), bias = to(p[at("bias")], x.dtype());
  return bmm(x, weight) + unsqueeze(bias, 1);
}

LayerNorm::LayerNorm(std::vector<ParameterSpec>& specs, std::string path, std::int64_t width, DType dtype, double eps, const DimName& dim)
    : Module(std::move(path)), eps_(eps) {
  add_constant(specs, at("weight"), {dtype, {width}}, Initialiser::Kind::ones, {dim});
  add_constant(specs, at("bias"), {dtype, {width}}, Initialiser::Kind::zeros, {dim});
}

Tensor LayerNorm::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = p[at("weight")], bias = p[at("bias")];
  return layer_norm(x, weight, bias, eps_);
}

RMSNorm::RMSNorm(std::vector<ParameterSpec>& specs, std::string path, std::int64_t width, DType dtype, double eps, const DimName& dim)
    : Module(std::move(path)), eps_(eps) {
  add_constant(specs, at("weight"), {dtype, {width}}, Initialiser::Kind::ones, {dim});
}

Tensor RMSNorm::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = p[at("weight")];
  return to(rms_norm(to(x, weight.dtype()), weight, eps_), x.dtype());
}

GroupNorm::GroupNorm(std::vector<ParameterSpec>& specs, std::string path, std::int64_t groups, std::int64_t channels, DType dtype,
                     double eps, const DimName& dim)
    : Module(std::move(path)), groups_(groups), eps_(eps) {
  add_constant(specs, at("weight"), {dtype, {channels}}, Initialiser::Kind::ones, {dim});
  add_constant(specs, at("bias"), {dtype, {channels}}, Initialiser::Kind::zeros, {dim});
}

Tensor GroupNorm::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = p[at("weight")];
  return to(group_norm(to(x, weight.dtype()), groups_, weight, p[at("bias")], eps_), x.dtype());
}

Embedding::Embedding(std::vector<ParameterSpec>& specs, std::string path, std::int64_t rows, std::int64_t width, double deviation,
                     DType dtype, const DimName& rows_dim, const DimName& width_dim)
    : Module(std::move(path)) {
  add_normal(specs, at("weight"), {dtype, {rows, width}}, deviation, {rows_dim, width_dim});
}

Tensor Embedding::operator()(const Parameters& p, Tensor indices) const {
  const Origin origin(path());
  return embedding(p[at("weight")], indices);
}

EmbeddingBag::EmbeddingBag(std::vector<ParameterSpec>& specs, std::string path, std::int64_t rows, std::int64_t width, double deviation,
                           DType dtype, const DimName& rows_dim, const DimName& width_dim)
    : Module(std::move(path)) {
  add_normal(specs, at("weight"), {dtype, {rows, width}}, deviation, {rows_dim, width_dim});
}

Tensor EmbeddingBag::operator()(const Parameters& p, Tensor indices) const {
  const Origin origin(path());
  return embedding_bag(p[at("weight")], indices);
}

Conv2d::Conv2d(std::vector<ParameterSpec>& specs, std::string path, const Conv2dShape& shape, double deviation, bool bias, DType dtype,
               const DimName& in_dim, const DimName& out_dim)
    : Module(std::move(path)), shape_(shape), bias_(bias) {
  if (shape.groups < 1 || shape.in % shape.groups != 0)
    throw Error(concat("Conv2d ", quote(this->path()), ": ", shape.in, " channels do not divide into ", shape.groups, " groups"));
  add_normal(specs, at("weight"), {dtype, {shape.out, shape.in / shape.groups, shape.kernel, shape.kernel}}, deviation,
             {out_dim, in_dim, {}, {}});
  if (bias) add_constant(specs, at("bias"), {dtype, {shape.out}}, Initialiser::Kind::zeros, {out_dim});
}

Tensor Conv2d::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype());
  return conv2d(x, weight, bias_ ? to(p[at("bias")], x.dtype()) : Tensor(), shape_.stride, shape_.padding, shape_.dilation, shape_.groups);
}

BatchNorm2d::BatchNorm2d(std::vector<ParameterSpec>& specs, std::string path, std::int64_t channels, DType dtype, double eps,
                         const DimName& dim)
    : Module(std::move(path)), eps_(eps) {
  add_constant(specs, at("weight"), {dtype, {channels}}, Initialiser::Kind::ones, {dim});
  add_constant(specs, at("bias"), {dtype, {channels}}, Initialiser::Kind::zeros, {dim});
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

Attention::Attention(std::vector<ParameterSpec>& specs, std::string path, const AttentionHeads& shape, double deviation, DType dtype,
                     const std::string& embed, const std::string& heads_dim)
    : Module(std::move(path)),
      shape_(checked(shape, this->path())),
      q_(specs, at("q_proj"), shape.width, shape.width, deviation, shape.bias, dtype, {embed}, {heads_dim, 1, shape_.heads}),
      k_(specs, at("k_proj"), shape.width, shape.width / shape_.heads * shape_.kv_heads, deviation, shape.bias, dtype, {embed},
         {heads_dim, 1, shape_.kv_heads}),
      v_(specs, at("v_proj"), shape.width, shape.width / shape_.heads * shape_.kv_heads, deviation, shape.bias, dtype, {embed},
         {heads_dim, 1, shape_.kv_heads}),
      o_(specs, at("o_proj"), shape.width, shape.width, deviation, shape.bias, dtype, {heads_dim, 1, shape_.heads}, {embed}) {}

Tensor Attention::operator()(const Parameters& p, Tensor x, const AttentionOptions& options, Tensor memory) const {
  const Origin origin(path());
  const Tensor from = memory ? memory : x;
  AttentionOptions with = options;
  with.enable_gqa = true;
  const Tensor q = by_heads(q_(p, x), shape_.heads), k = by_heads(k_(p, from), shape_.kv_heads), v = by_heads(v_(p, from), shape_.kv_heads);
  return o_(p, reshape(transpose(scaled_dot_product_attention(q, k, v, with), 1, 2), x.shape()));
}

MLP::MLP(std::vector<ParameterSpec>& specs, std::string path, const MLPShape& shape, double deviation, DType dtype,
         const DimName& width_dim, const DimName& hidden_dim)
    : Module(std::move(path)),
      shape_(shape),
      up_(specs, at("up_proj"), shape.width, shape.hidden, deviation, shape.bias, dtype, width_dim, hidden_dim),
      gate_(shape.gated ? std::optional<Linear>(std::in_place, specs, at("gate_proj"), shape.width, shape.hidden, deviation, shape.bias,
                                                dtype, width_dim, hidden_dim)
                        : std::nullopt),
      down_(specs, at("down_proj"), shape.hidden, shape.width, deviation, shape.bias, dtype, hidden_dim, width_dim) {
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
