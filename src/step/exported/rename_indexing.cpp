// SPDX-License-Identifier: Apache-2.0
#include "exported/rename_rows.h"
#include "ops/infer.h"

namespace penstock {
namespace {

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

// The indices of bags as [bags, bag], where all bags are summed and of one size; none otherwise. `offsets` says where each begins.
Tensor equal_bags(const NamedCall& call, Tensor indices, Tensor offsets) {
  const ConstantTensor* begins = call.constants.value_of(offsets);
  const bool plain = attribute_or(call.op, "mode", std::int64_t{0}) == 0 && !attribute_or(call.op, "sparse", false) &&
                     !attribute_or(call.op, "scale_grad_by_freq", false) && !attribute_or(call.op, "include_last_offset", false) &&
                     attribute_or(call.op, "padding_idx", std::int64_t{-1}) < 0;
  if (!begins || !plain || begins->values.empty() || indices.rank() != 1) return {};
  const std::int64_t bags = std::ssize(begins->values), bag = indices.size(0) / bags;
  for (std::int64_t i = 0; i < bags; ++i)
    if (begins->values[static_cast<std::size_t>(i)] != i * bag) return {};
  return bag > 0 && bags * bag == indices.size(0) ? reshape(indices, {bags, bag}) : Tensor();
}

// Returns the weight of each index, [bags, bag, 1].
Tensor in_bags_too(Tensor weights, Tensor in_bags) {
  return reshape(weights, {in_bags.size(0), in_bags.size(1), 1});
}

// (weight, indices, offsets, weights of them?) -> (sums, the bag of each index, the bags' sizes, what only other modes have). PyTorch may
// declare fewer of the bags than its op gives: then none, and its backward does not need them.
Tensors bags(const NamedCall& call) {
  const Tensor weight = call.operand(0), indices = call.operand(1), weights = call.operand(3);
  const Tensor in_bags = equal_bags(call, indices, call.operand(2));
  if (!in_bags) return {};
  const Tensor bag = expand(unsqueeze(arange(indices, in_bags.size(0), DType::i64), 1), in_bags.shape());
  const auto number = [&](std::size_t i, std::int64_t value) {
    return full(indices, call.results[i].shape, static_cast<double>(value), DType::i64);
  };
  const Tensor bag_of_each = call.results[1].elements() == 0 ? number(1, 0) : reshape(bag, indices.shape());
  const Tensor sums = weights ? sum(embedding(weight, in_bags) * in_bags_too(weights, in_bags), {1}) : embedding_bag(weight, in_bags);
  return {sums, bag_of_each, number(2, in_bags.size(1)), number(3, 0)};
}

// (dy, indices, offsets, the bag of each index, the bags' sizes, .., weights of them?) -> dweight
Tensors bags_backward(const NamedCall& call) {
  const Tensor dy = call.operand(0), weights = call.operand(6), in_bags = equal_bags(call, call.operand(1), call.operand(2));
  if (!in_bags) return {};
  const Attributes rows = {{"num_weights", attribute<std::int64_t>(call.op, "num_weights")}};
  if (!weights) return {emit("embedding_bag_dense_backward", {dy, in_bags}, rows)};
  return {emit("embedding_dense_backward", {unsqueeze(dy, 1) * in_bags_too(weights, in_bags), in_bags}, rows)};
}

// (dy, weight, indices, offsets, the bag of each index) -> dweights of the indices
Tensors bag_weights_backward(const NamedCall& call) {
  const Tensor indices = call.operand(2), in_bags = equal_bags(call, indices, call.operand(3));
  if (!in_bags) return {};
  return {reshape(sum(unsqueeze(call.operand(0), 1) * embedding(call.operand(1), in_bags), {2}), indices.shape())};
}

int last_or_dim(const NamedCall& call) {
  return static_cast<int>(attribute_or(call.op, "dim", std::int64_t{-1}));
}

// x -> (values, places)
Tensors sorted(const NamedCall& call) {
  const auto [values, indices] = sort(call.operand(0), last_or_dim(call), attribute_or(call.op, "descending", false));
  return {values, indices};
}

// x -> (values, places)
Tensors largest(const NamedCall& call) {
  const auto [values, indices] = topk(call.operand(0), attribute<std::int64_t>(call.op, "k"), last_or_dim(call),
                                      attribute_or(call.op, "largest", true), attribute_or(call.op, "sorted", true));
  return {values, indices};
}

// x -> the place of its maximum
Tensors place_of_maximum(const NamedCall& call) {
  const bool along = call.op.attributes.contains("dim");
  return {argmax(call.operand(0), along ? std::optional<int>(last_or_dim(call)) : std::nullopt, attribute_or(call.op, "keepdim", false))};
}

}  // namespace

std::span<const RenameRow> indexing_rows() {
  static constexpr RenameRow all[] = {
      {"aten::embedding", binary<embedding>},
      {"aten::embedding_dense_backward", rows_backward},
      {"aten::_embedding_bag", bags},
      {"aten::_embedding_bag_backward", bags_backward},
      {"aten::_embedding_bag_per_sample_weights_backward", bag_weights_backward},
      {"aten::index.Tensor", all_in_order},
      {"aten::gather", along_dim<"gather">},
      {"aten::scatter.src", along_dim<"scatter.src">},
      {"aten::scatter_add", along_dim<"scatter_add">},
      {"aten::index_select", along_dim<"index_select">},
      {"aten::sort", sorted},
      {"aten::sort.stable", sorted},
      {"aten::topk", largest},
      {"aten::argmax", place_of_maximum},
  };
  return all;
}

}  // namespace penstock
