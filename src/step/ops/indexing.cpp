// SPDX-License-Identifier: Apache-2.0
// Ops that read and write places that indices name, and those that give such indices. libtorch's dispatcher computes them, by their names.
#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

std::size_t dim_of(const Op& op, Types operands) {
  return dim_attribute(op, operands, "dim", operands[0].shape.size());
}

// Checks that `index` has as many dims as x, and is no larger but along dim.
void require_index(const Op& op, Types operands, const TensorType& index) {
  const TensorType& x = operands[0];
  require(index.dtype == DType::i64, op, operands, "indices must be i64");
  require(index.shape.size() == x.shape.size(), op, operands, "x and indices must have equally many dims");
  const std::size_t dim = dim_of(op, operands);
  for (std::size_t d = 0; d < x.shape.size(); ++d)
    require(d == dim || index.shape[d] <= x.shape[d], op, operands, "indices may be larger than x along dim only");
}

// (x, indices) -> the elements that the indices name along dim
std::vector<TensorType> infer_gather(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_index(op, operands, operands[1]);
  return {{operands[0].dtype, operands[1].shape}};
}

// (x, indices, source) -> x with the source at, or added to, the places that the indices name along dim
std::vector<TensorType> infer_scatter(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  require_index(op, operands, operands[1]);
  require(operands[2] == TensorType{operands[0].dtype, operands[1].shape}, op, operands,
          "the source must have x's dtype and the indices' shape");
  return {operands[0]};
}

void require_row_index(const Op& op, Types operands) {
  require(operands[1].dtype == DType::i64 && operands[1].shape.size() == 1, op, operands, "needs indices i64[n]");
}

// (x, indices[n]) -> x with n places along dim
std::vector<TensorType> infer_index_select(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_row_index(op, operands);
  TensorType out = operands[0];
  out.shape[dim_of(op, operands)] = operands[1].shape[0];
  return {out};
}

// (x, indices[n], source) -> x with the source's n places along dim added to those that the indices name
std::vector<TensorType> infer_index_add(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  require_row_index(op, operands);
  TensorType source = operands[0];
  source.shape[dim_of(op, operands)] = operands[1].shape[0];
  require(operands[2] == source, op, operands, "the source must be as x, with as many places along dim as there are indices");
  return {operands[0]};
}

// x -> (values, places along dim)
std::vector<TensorType> infer_sort(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  dim_of(op, operands);
  attribute<bool>(op, "descending");
  return {operands[0], {DType::i64, operands[0].shape}};
}

std::vector<TensorType> infer_topk(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  TensorType out = operands[0];
  std::int64_t& size = out.shape[dim_of(op, operands)];
  const std::int64_t k = attribute<std::int64_t>(op, "k");
  if (k < 0 || k > size) fail(op, operands, concat("k must be in [0, ", size, "]"));
  size = k;
  return {out, {DType::i64, out.shape}};
}

std::vector<TensorType> infer_argmax(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const std::size_t dim = dim_of(op, operands);
  TensorType out{DType::i64, operands[0].shape};
  require(out.shape[dim] > 0, op, operands, "nothing has no maximum");
  if (attribute_or(op, "keepdim", false))
    out.shape[dim] = 1;
  else
    out.shape.erase(out.shape.begin() + static_cast<std::ptrdiff_t>(dim));
  return {out};
}

// --- gradients

Tensors gather_vjp(const VjpArguments& a) {
  return {emit("scatter_add", {full_like(a.operands[0], 0), a.operands[1], a.cotangents[0]}, a.op.attributes), {}};
}

// Elements that are overwritten do not count.
Tensors scatter_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0], indices = a.operands[1];
  Tensors out(3);
  if (a.wanted[0]) out[0] = emit("scatter.src", {dy, indices, full_like(a.operands[2], 0)}, a.op.attributes);
  if (a.wanted[2]) out[2] = emit("gather", {dy, indices}, a.op.attributes);
  return out;
}

Tensors scatter_add_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  return {dy, {}, a.wanted[2] ? emit("gather", {dy, a.operands[1]}, a.op.attributes) : Tensor()};
}

Tensors index_select_vjp(const VjpArguments& a) {
  return {emit("index_add", {full_like(a.operands[0], 0), a.operands[1], a.cotangents[0]}, a.op.attributes), {}};
}

Tensors index_add_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  return {dy, {}, a.wanted[2] ? emit("index_select", {dy, a.operands[1]}, a.op.attributes) : Tensor()};
}

// The gradient of sort and topk: the values go back to the places that they came from.
Tensors chosen_vjp(const VjpArguments& a) {
  const Attributes dim = {{"dim", attribute<std::int64_t>(a.op, "dim")}};
  return {emit("scatter_add", {full_like(a.operands[0], 0), a.results[1], a.cotangents[0]}, dim)};
}

// --- what members compute of parts

// Dims other than the attribute "dim" in which all operands are of one size.
std::optional<LayoutRow> equal_dims(const LayoutSite& site, std::size_t operand, const Layout& split) {
  const std::int64_t size = site.operands[operand].shape[split.dim];
  for (const TensorType& type : site.operands)
    if (type.shape[split.dim] != size) return std::nullopt;
  return other_dims(site, operand, split);
}

// The numbers of x's dims where `indices` is of one dim that stands for x's along "dim".
std::optional<LayoutRow> around_index(const LayoutSite& site, std::size_t operand, const Layout& split) {
  if (operand == 1) return std::nullopt;
  const LayoutSite without{site.op, site.operands.first(1), site.results, site.members};
  const DimNumbers numbers = all_dims_but_one(without);
  const std::vector<int>& of_x = numbers.operands[0];
  DimNumbers all{{of_x, {kNeverCut}}, numbers.results};
  if (site.operands.size() > 2) all.operands.push_back(of_x);
  return row_by_numbers(all, site, operand, split);
}

DimNumbers argmax_numbers(const LayoutSite& site) {
  DimNumbers numbers = all_dims_but_one({site.op, site.operands, site.operands, site.members});
  const std::size_t dim = dim_of(site.op, site.operands);
  if (!attribute_or(site.op, "keepdim", false)) numbers.results[0].erase(numbers.results[0].begin() + static_cast<std::ptrdiff_t>(dim));
  return numbers;
}

// --- flops

// Comparisons of a sort by merging; topk is counted alike.
double flops_sort(const Op& op, Types operands, Types) {
  const double row = static_cast<double>(operands[0].shape[dim_of(op, operands)]);
  return static_cast<double>(operands[0].elements()) * std::log2(std::max(row, 2.0));
}

}  // namespace

std::span<const OpDefinition> indexing_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "gather", .infer = infer_gather, .vjp = gather_vjp, .flops = flops_none, .layout = equal_dims},
      {.name = "scatter.src", .infer = infer_scatter, .vjp = scatter_vjp, .flops = flops_none, .layout = equal_dims},
      {.name = "scatter_add", .infer = infer_scatter, .vjp = scatter_add_vjp, .flops = flops_by_operand<1, 2>, .layout = equal_dims},
      {.name = "index_select", .infer = infer_index_select, .vjp = index_select_vjp, .flops = flops_none, .layout = around_index},
      {.name = "index_add", .infer = infer_index_add, .vjp = index_add_vjp, .flops = flops_by_operand<1, 2>, .layout = around_index},
      {.name = "sort.stable", .infer = infer_sort, .vjp = chosen_vjp, .flops = flops_sort, .layout = other_dims},
      {.name = "topk", .infer = infer_topk, .vjp = chosen_vjp, .flops = flops_sort, .layout = other_dims},
      {.name = "argmax", .infer = infer_argmax, .flops = flops_by_operand<1>, .layout = by<argmax_numbers>},
  };
  return all;
}

Tensor gather(Tensor x, int dim, Tensor index) {
  return emit("gather", {x, index}, {{"dim", wrap(dim, x.rank())}});
}

Tensor scatter(Tensor x, int dim, Tensor index, Tensor source) {
  return emit("scatter.src", {x, index, source}, {{"dim", wrap(dim, x.rank())}});
}

Tensor scatter_add(Tensor x, int dim, Tensor index, Tensor source) {
  return emit("scatter_add", {x, index, source}, {{"dim", wrap(dim, x.rank())}});
}

Tensor index_select(Tensor x, int dim, Tensor index) {
  return emit("index_select", {x, index}, {{"dim", wrap(dim, x.rank())}});
}

Tensor index_add(Tensor x, int dim, Tensor index, Tensor source) {
  return emit("index_add", {x, index, source}, {{"dim", wrap(dim, x.rank())}});
}

ValuesAndIndices sort(Tensor x, int dim, bool descending) {
  const Tensors out = emit_all("sort.stable", {&x, 1}, {{"stable", true}, {"dim", wrap(dim, x.rank())}, {"descending", descending}});
  return {out[0], out[1]};
}

ValuesAndIndices topk(Tensor x, std::int64_t k, int dim, bool largest, bool sorted) {
  const Tensors out = emit_all("topk", {&x, 1}, {{"k", k}, {"dim", wrap(dim, x.rank())}, {"largest", largest}, {"sorted", sorted}});
  return {out[0], out[1]};
}

Tensor argmax(Tensor x, std::optional<int> dim, bool keepdim) {
  if (dim) return emit("argmax", {x}, {{"dim", wrap(*dim, x.rank())}, {"keepdim", keepdim}});
  const Tensor place = argmax(reshape(x, {-1}), 0);
  return keepdim ? reshape(place, Shape(x.shape().size(), 1)) : place;
}

}  // namespace penstock
