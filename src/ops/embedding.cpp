#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;

// (weight[rows, width], indices) -> [..., width]
std::vector<TensorType> infer_embedding(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_floating(op, operands);
  require(operands[0].shape.size() == 2, op, operands, "needs weight[rows, width]");
  require(operands[1].dtype == DType::i64, op, operands, "indices must be i64");
  TensorType out{operands[0].dtype, operands[1].shape};
  out.shape.push_back(operands[0].shape[1]);
  return {out};
}

// (dy[..., width], indices) -> dweight[num_weights, width]
std::vector<TensorType> infer_embedding_backward(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_floating(op, operands);
  require(operands[1].dtype == DType::i64, op, operands, "indices must be i64");
  Shape leading = operands[0].shape;
  require(!leading.empty(), op, operands, "dy must have a last dim");
  leading.pop_back();
  require(leading == operands[1].shape, op, operands, "dy must have the shape of the indices and a last dim");
  return {{operands[0].dtype, {attribute<std::int64_t>(op, "num_weights"), operands[0].shape.back()}}};
}

// (weight[rows, width], indices[..., bag]) -> [..., width]
std::vector<TensorType> infer_embedding_bag(const Op& op, Types operands) {
  TensorType out = infer_embedding(op, operands)[0];
  require(out.shape.size() >= 2, op, operands, "indices must have a last dim");
  out.shape.erase(out.shape.end() - 2);
  return {out};
}

// (dy[..., width], indices[..., bag]) -> dweight[num_weights, width]
std::vector<TensorType> infer_embedding_bag_backward(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_floating(op, operands);
  require(operands[1].dtype == DType::i64, op, operands, "indices must be i64");
  Shape dy = operands[0].shape, bags = operands[1].shape;
  require(!dy.empty() && !bags.empty(), op, operands, "dy and indices must have a last dim");
  const std::int64_t width = dy.back();
  dy.pop_back();
  bags.pop_back();
  require(dy == bags, op, operands, "dy and indices must agree but for their last dim");
  return {{operands[0].dtype, {attribute<std::int64_t>(op, "num_weights"), width}}};
}

Tensors embedding_vjp(const VjpArguments& a) {
  return {emit("embedding_dense_backward", {a.cotangents[0], a.operands[1]}, {{"num_weights", a.operands[0].size(0)}}), {}};
}

Tensors embedding_bag_vjp(const VjpArguments& a) {
  return {emit("embedding_bag_dense_backward", {a.cotangents[0], a.operands[1]}, {{"num_weights", a.operands[0].size(0)}}), {}};
}

// Bytes: only the rows that the indices name are read.
double bytes_embedding(const Op&, Types operands, Types results) {
  return static_cast<double>(operands[1].bytes()) + 2 * static_cast<double>(results[0].bytes());
}

double flops_bag(const Op&, Types operands, Types) {
  return static_cast<double>(operands[1].elements()) * static_cast<double>(operands[0].shape.back());
}

double bytes_bag(const Op& op, Types operands, Types results) {
  const double rows = flops_bag(op, operands, results) * static_cast<double>(byte_size(operands[0].dtype));
  return static_cast<double>(operands[1].bytes()) + rows + static_cast<double>(results[0].bytes());
}

double flops_embedding_backward(const Op&, Types operands, Types) {
  return static_cast<double>(operands[0].elements());
}

}  // namespace

std::span<const OpDefinition> embedding_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "embedding", .infer = infer_embedding, .vjp = embedding_vjp, .flops = flops_none, .bytes = bytes_embedding},
      {.name = "embedding_dense_backward", .infer = infer_embedding_backward, .flops = flops_embedding_backward},
      {.name = "embedding_bag", .infer = infer_embedding_bag, .vjp = embedding_bag_vjp, .flops = flops_bag, .bytes = bytes_bag},
      {.name = "embedding_bag_dense_backward", .infer = infer_embedding_bag_backward, .flops = flops_bag},
  };
  return all;
}

Tensor embedding(Tensor weight, Tensor indices) {
  return emit("embedding", {weight, indices});
}

Tensor embedding_bag(Tensor weight, Tensor indices) {
  return emit("embedding_bag", {weight, indices});
}

}  // namespace penstock
