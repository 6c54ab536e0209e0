#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

using Tensors = std::vector<Tensor>;

// (weight, indices) -> rows
Tensors rows(const NamedCall& call) {
  return {embedding(call.operand(0), call.operand(1))};
}

// (dy, indices) -> dweight. What indices of padding read gets no gradient.
Tensors rows_backward(const NamedCall& call) {
  if (attribute_or(call.op, "scale_grad_by_freq", false)) return {};
  Tensor dy = call.operand(0);
  const Tensor indices = call.operand(1);
  const std::int64_t padding = attribute_or(call.op, "padding_idx", std::int64_t{-1});
  if (padding >= 0) dy = dy * unsqueeze(to(ne(indices, static_cast<double>(padding)), dy.dtype()), -1);
  return {emit("embedding_dense_backward", {dy, indices}, {{"num_weights", attribute<std::int64_t>(call.op, "num_weights")}})};
}

// x[indices...] of constant indices that name each element once, in order, is x in another shape.
Tensors all_in_order(const NamedCall& call) {
  if (call.op.attributes.contains("none")) return {};
  const Tensor x = call.operand(0);
  std::vector<const ConstantTensor*> indices;
  std::int64_t elements = 1;
  for (std::size_t k = 1; k < call.operands.size(); ++k) {
    indices.push_back(call.constants.value_of(call.operand(k)));
    if (!indices.back() || call.operand(k).dtype() == DType::boolean) return {};
    elements *= x.size(static_cast<int>(k) - 1);
  }
  const std::int64_t rank = std::ssize(call.results[0].shape) + std::ssize(indices) - x.rank();
  if (rank < 0 || rank > std::ssize(call.results[0].shape)) return {};
  const Shape broadcast(call.results[0].shape.begin(), call.results[0].shape.begin() + rank);
  for (const ConstantTensor* index : indices)
    if (!broadcasts(*index, broadcast)) return {};
  std::int64_t next = 0;
  const bool in_order = for_each_index(broadcast, [&](const std::vector<std::int64_t>& index) {
    std::int64_t place = 0;
    for (std::size_t k = 0; k < indices.size(); ++k)
      place = place * x.size(static_cast<int>(k)) + wrap(element(*indices[k], index), x.size(static_cast<int>(k)));
    return place == next++;
  });
  return in_order && next == elements ? Tensors{reshape(x, call.results[0].shape)} : Tensors();
}

}  // namespace

std::span<const RenameRow> indexing_rows() {
  static constexpr RenameRow all[] = {
      {"aten::embedding", rows}, {"aten::embedding_dense_backward", rows_backward}, {"aten::index.Tensor", all_in_order}};
  return all;
}

}  // namespace penstock
