// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

// A member has the rows of a table from "begin" on, of "whole" rows: indices of other rows name zeros. Without these attributes
// the table is whole, and every index must name a row of it.
void require_part(const Op& op, Types operands, std::int64_t rows) {
  if (!op.attributes.contains("begin") && !op.attributes.contains("whole")) return;
  const std::int64_t begin = attribute<std::int64_t>(op, "begin"), whole = attribute<std::int64_t>(op, "whole");
  if (begin < 0 || rows > whole || begin > whole - rows)
    fail(op, operands, concat(rows, " rows from row ", begin, " on do not lie in a table of ", whole));
}

// (weight[rows, width], indices) -> [..., width]
std::vector<TensorType> infer_embedding(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_floating(op, operands);
  require(operands[0].shape.size() == 2, op, operands, "needs weight[rows, width]");
  require(operands[1].dtype == DType::i64, op, operands, "indices must be i64");
  require_part(op, operands, operands[0].shape[0]);
  TensorType out{operands[0].dtype, operands[1].shape};
  out.shape.push_back(operands[0].shape[1]);
  return {out};
}

// (weight[rows, width], indices, ahead[..., width], changed...) -> [..., width]: rows that were looked up ahead, and anew those whose index
// is among the changed.
std::vector<TensorType> infer_embedding_patched(const Op& op, Types operands) {
  require(operands.size() >= 4, op, operands, "needs weight, indices, rows looked up ahead, and indices of what has changed");
  std::vector<TensorType> out = infer_embedding(op, operands.first(2));
  require(operands[2] == out[0], op, operands, "the rows looked up ahead must be those of the indices");
  for (const TensorType& changed : operands.subspan(3)) require(changed.dtype == DType::i64, op, operands, "indices must be i64");
  return out;
}

// The type of a table's gradient, which is as wide as the first operand's last dim.
TensorType table_type(const Op& op, Types operands) {
  const std::int64_t rows = attribute<std::int64_t>(op, "num_weights");
  require(rows >= 0, op, operands, "num_weights is negative");
  require_part(op, operands, rows);
  return {operands[0].dtype, {rows, operands[0].shape.back()}};
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
  return {table_type(op, operands)};
}

// (rows[n, width], indices[n]) -> [n, width]: in the first place of each index the sum of all its rows, in their order, elsewhere zeros
std::vector<TensorType> infer_sum_equal_rows(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require_floating(op, operands);
  require(operands[0].shape.size() == 2, op, operands, "needs rows[n, width]");
  require(operands[1] == TensorType{DType::i64, {operands[0].shape[0]}}, op, operands, "needs an i64 index for each row");
  require(attribute<std::int64_t>(op, "num_weights") >= 0, op, operands, "num_weights is negative");
  return {operands[0]};
}

// (weight[rows, width], gradient[n, width], indices[n], learning_rate) -> weight, of which learning_rate * gradient is taken from the rows
// of the indices, one after the other
std::vector<TensorType> infer_sgd_rows(const Op& op, Types operands) {
  require_count(op, operands, 4, 4);
  require_floating(op, operands);
  require(operands[0].shape.size() == 2, op, operands, "needs weight[rows, width]");
  const std::int64_t n = operands[2].elements();
  require(operands[2] == TensorType{DType::i64, {n}}, op, operands, "indices must be a vector of i64");
  require(operands[1] == TensorType{operands[0].dtype, {n, operands[0].shape[1]}}, op, operands,
          "needs a row of the gradient for each index");
  require(is_floating(operands[3].dtype) && operands[3].shape.empty(), op, operands, "the learning rate must be a floating scalar");
  require_part(op, operands, operands[0].shape[0]);
  return {operands[0]};
}

// (weight[rows, width], indices[n, 1]) -> [n, 1, width]: an embedding outside of the loop, whose table lies as its rows do
std::vector<TensorType> infer_take_rows(const Op& op, Types operands) {
  const std::vector<TensorType> out = infer_embedding(op, operands);
  require(operands[1].shape.size() == 2 && operands[1].shape[1] == 1, op, operands, "needs indices[n, 1]");
  return out;
}

// (weight[rows, width], rows[n, 1, width], indices[n, 1]) -> weight, of which these are the rows of the indices: of equal ones the first
std::vector<TensorType> infer_put_rows(const Op& op, Types operands) {
  require_count(op, operands, 3, 3);
  const TensorType rows = infer_take_rows(op, std::array{operands[0], operands[2]})[0];
  require(operands[1] == rows, op, operands, "needs a row for each index");
  return {operands[0]};
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
  dy.pop_back();
  bags.pop_back();
  require(dy == bags, op, operands, "dy and indices must agree but for their last dim");
  return {table_type(op, operands)};
}

Tensors embedding_vjp(const VjpArguments& a) {
  return {emit("embedding_dense_backward", {a.cotangents[0], a.operands[1]}, {{"num_weights", a.operands[0].size(0)}}), {}};
}

Tensors embedding_bag_vjp(const VjpArguments& a) {
  return {emit("embedding_bag_dense_backward", {a.cotangents[0], a.operands[1]}, {{"num_weights", a.operands[0].size(0)}}), {}};
}

using EmbeddingRow = std::optional<LayoutRow>;

// A member's rows of the table are one range, so that one attribute says which.
bool has_range_of_rows(const Layout& split) {
  return split.dim != 0 || split.outer == 1;
}

constexpr auto* embedding_numbers = named<"vw,*->*w">;
constexpr auto* embedding_bag_numbers = named<"vw,*b->*w">;
constexpr auto* sgd_rows_numbers = named<"vw,Nw,N,->vw">;  // all members that have rows of a table have all indices
constexpr auto* put_rows_numbers = named<"vw,NMw,NM->vw">;
constexpr auto* backward_numbers = named<"*w,*->vw">;
constexpr auto* bag_backward_numbers = named<"*w,*b->vw">;

template <DimNumbers (*Numbers)(const LayoutSite&)>
EmbeddingRow row_of_table(const LayoutSite& site, std::size_t operand, const Layout& split) {
  if (operand == 0 && !has_range_of_rows(split)) return std::nullopt;
  return row_by_numbers(Numbers(site), site, operand, split);
}

// The columns of the result are those of the first operand, whose other dims they may come behind.
template <DimNumbers (*Numbers)(const LayoutSite&)>
EmbeddingRow row_of_columns(const LayoutSite& site, std::size_t, const Layout& split) {
  if (split.dim == 0) return std::nullopt;
  Layout columns = split;
  columns.dim = static_cast<int>(site.operands[0].shape.size()) - 1;
  return row_by_numbers(Numbers(site), site, 0, columns);
}

template <DimNumbers (*Numbers)(const LayoutSite&)>
EmbeddingRow row_of_gradient(const LayoutSite& site, std::size_t result, const Layout& split) {
  if (split.dim != 0) return row_of_columns<Numbers>(site, result, split);
  if (!has_range_of_rows(split)) return std::nullopt;
  return row_by_numbers_of_result(Numbers(site), site, result, split);
}

// Says which rows a member has of a table, if it has not all of them.
void mark_part(const LocalSite& site, const Layout& table, std::int64_t rows, Op& local) {
  if (!table.is_split() || table.dim != 0) return;
  local.attributes["begin"] = attribute_or(site.whole.op, "begin", std::int64_t{0}) + site.range(table, rows).begin;
  local.attributes["whole"] = attribute_or(site.whole.op, "whole", rows);
}

void local_embedding(const LocalSite& site, Op& local) {
  mark_part(site, site.row.operands[0], site.whole.operands[0].shape[0], local);
}

void local_backward(const LocalSite& site, Op& local) {
  local.attributes["num_weights"] = site.results[0].shape[0];
  mark_part(site, site.row.results[0], site.whole.results[0].shape[0], local);
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

// Bytes: of the table only the rows that the indices name.
double bytes_sgd_rows(const Op&, Types operands, Types) {
  return static_cast<double>(operands[2].bytes()) + 3 * static_cast<double>(operands[1].bytes());
}

double bytes_put_rows(const Op&, Types operands, Types) {
  return static_cast<double>(operands[2].bytes()) + 2 * static_cast<double>(operands[1].bytes());
}

constexpr UpdateRules kOfRows{.indices = 2};

}  // namespace

std::span<const OpDefinition> embedding_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "embedding",
       .infer = infer_embedding,
       .vjp = embedding_vjp,
       .flops = flops_none,
       .bytes = bytes_embedding,
       .layout = row_of_table<embedding_numbers>,
       .layout_result = result_by<embedding_numbers>,
       .local = local_embedding},
      {.name = "embedding_dense_backward",
       .infer = infer_embedding_backward,
       .flops = flops_by_operand<1>,
       .layout = by<backward_numbers>,
       .layout_result = row_of_gradient<backward_numbers>,
       .local = local_backward},
      {.name = "embedding_patched", .infer = infer_embedding_patched, .flops = flops_none, .bytes = bytes_embedding},
      {.name = "sum_equal_rows",
       .infer = infer_sum_equal_rows,
       .flops = flops_by_operand<1>,
       .layout = by<named<"Nw,N->Nw">>,
       .layout_result = row_of_columns<named<"Nw,N->Nw">>},
      // The table is read where it is written.
      {.name = "sgd_rows",
       .infer = infer_sgd_rows,
       .flops = flops_by_operand<2, 1>,
       .bytes = bytes_sgd_rows,
       .elementwise = true,
       .layout = row_of_table<sgd_rows_numbers>,
       .layout_result = row_of_columns<sgd_rows_numbers>,
       .local = local_embedding,
       .update = &kOfRows},
      {.name = "take_rows",
       .infer = infer_take_rows,
       .flops = flops_none,
       .bytes = bytes_embedding,
       .layout = row_of_table<embedding_numbers>,
       .layout_result = row_of_columns<embedding_numbers>,
       .local = local_embedding},
      // Rows have another rank than the table, so that it is not written over them.
      {.name = "put_rows",
       .infer = infer_put_rows,
       .flops = flops_none,
       .bytes = bytes_put_rows,
       .elementwise = true,
       .layout = row_of_table<put_rows_numbers>,
       .layout_result = row_of_columns<put_rows_numbers>,
       .local = local_embedding,
       .update = &kOfRows},
      {.name = "embedding_bag",
       .infer = infer_embedding_bag,
       .vjp = embedding_bag_vjp,
       .flops = flops_bag,
       .bytes = bytes_bag,
       .layout = row_of_table<embedding_bag_numbers>,
       .local = local_embedding},
      {.name = "embedding_bag_dense_backward",
       .infer = infer_embedding_bag_backward,
       .flops = flops_bag,
       .layout = by<bag_backward_numbers>,
       .layout_result = row_of_gradient<bag_backward_numbers>,
       .local = local_backward},
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
