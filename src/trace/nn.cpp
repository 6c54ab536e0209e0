// The modules of nn. A parameter has the master dtype, an activation the dtype that the model chooses.
#include <algorithm>

#include "base/text.h"
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
  return to(layer_norm(to(x, weight.dtype()), weight, bias, eps_), x.dtype());
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
  add_normal(specs, at("weight"), {dtype, {shape.out, shape.in, shape.kernel, shape.kernel}}, deviation, {out_dim, in_dim, {}, {}});
  if (bias) add_constant(specs, at("bias"), {dtype, {shape.out}}, Initialiser::Kind::zeros, {out_dim});
}

Tensor Conv2d::operator()(const Parameters& p, Tensor x) const {
  const Origin origin(path());
  const Tensor weight = to(p[at("weight")], x.dtype());
  return conv2d(x, weight, bias_ ? to(p[at("bias")], x.dtype()) : Tensor(), shape_.stride, shape_.padding);
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

}  // namespace penstock::nn
