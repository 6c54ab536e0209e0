// SPDX-License-Identifier: Apache-2.0
// The table of names: which ops of ours an op of ATen's is. A file for each family, as in src/step/ops.
#pragma once

#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "exported/constants.h"
#include "ops/builder.h"
#include "ops/layouts.h"

namespace penstock {

// An op by name, as a row reads it.
struct NamedCall {
  const Op& op;
  std::vector<Tensor> operands;     // by the places of the schema's tensors; no tensor where one is absent (bind_by_name in torch/kernel.h)
  std::vector<TensorType> results;  // as declared
  Builder& builder;                 // the graph being made, under the op's marks
  const std::vector<int>& readers;  // of each operand, by place: how many ops and outputs of the source graph read it
  Constants& constants;             // of the graph being made

  // No tensor behind the last place too: a graph may be anybody's file.
  Tensor operand(std::size_t place) const { return place < operands.size() ? operands[place] : Tensor(); }
};

// Gives a tensor for each result, or nothing at all where it does not take the op. It may throw what functions of ops.h throw for operands
// that an op of ours does not take; results of other types than the declared ones count as not taken too.
struct RenameRow {
  std::string_view name;
  std::vector<Tensor> (*make)(const NamedCall&);
};

std::span<const RenameRow> elementwise_rows();
std::span<const RenameRow> reduction_rows();
std::span<const RenameRow> shape_rows();
std::span<const RenameRow> constant_rows();
std::span<const RenameRow> product_rows();
std::span<const RenameRow> convolution_rows();
std::span<const RenameRow> normalisation_rows();
std::span<const RenameRow> attention_rows();
std::span<const RenameRow> indexing_rows();
std::span<const RenameRow> loss_rows();

// All of them.
std::vector<RenameRow> rename_rows();

// --- functions of rows

template <Tensor (*Make)(Tensor)>
Tensors unary(const NamedCall& call) {
  return {Make(call.operand(0))};
}
template <Tensor (*Make)(Tensor, Tensor)>
Tensors binary(const NamedCall& call) {
  return {Make(call.operand(0), call.operand(1))};
}
// An op that has the same operands, and the same attributes if any, under our name.
Tensors under_our_name(const NamedCall& call);
// An op of ours of this name with the same operands, and no attribute but "dim".
Tensors along_dim(const NamedCall& call, std::string_view name);
template <TextArgument Name>
Tensors along_dim(const NamedCall& call) {
  return along_dim(call, Name.text);
}

// --- what rows ask

// The op of this name that made x; null where another did.
const Op* made_by(Tensor x, std::string_view name);
// Operand i of an op of x's graph.
Tensor operand_of(Tensor x, const Op& op, std::size_t i);
// The number that x is where it is a constant scalar.
std::optional<double> constant_number(Tensor x);
// x in this dtype; a constant is made anew.
Tensor cast(Tensor x, DType dtype);
// x in the dtype that statistics are kept in: what x was rounded from, where it was.
Tensor unrounded(Tensor x);
// x with two of its dims exchanged, which undoes an exchange of the same two.
Tensor exchanged(Tensor x, std::int64_t dim0, std::int64_t dim1);
// The "output_mask" of an op that can give three results. Throws Error where it is not of three.
std::vector<std::int64_t> output_mask(const Op& op);
// The results that such an op gives, out of all that it can give.
std::vector<Tensor> masked(const Op& op, const std::vector<Tensor>& all);

}  // namespace penstock
