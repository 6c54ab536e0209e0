// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

Shape reduced(const Op& op, Types operands, bool keepdim) {
  Shape out = operands[0].shape;
  const std::vector<std::int64_t> dims = dims_attribute(op, operands, out.size());
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (keepdim) {
      out[dims[i]] = 1;
    } else {
      out.erase(out.begin() + dims[i]);
    }
  }
  return out;
}

TensorType infer_reduction(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  return {operands[0].dtype, reduced(op, operands, attribute_or(op, "keepdim", false))};
}

// Integers and bools are summed in i64, as in ATen.
std::vector<TensorType> infer_sum(const Op& op, Types operands) {
  TensorType out = infer_reduction(op, operands);
  if (!is_floating(out.dtype)) out.dtype = DType::i64;
  return {out};
}

std::vector<TensorType> infer_mean(const Op& op, Types operands) {
  const TensorType out = infer_reduction(op, operands);
  require_floating(op, operands);
  return {out};
}

std::vector<TensorType> infer_amax(const Op& op, Types operands) {
  const TensorType out = infer_reduction(op, operands);
  require(out.elements() == 0 || operands[0].elements() > 0, op, operands, "nothing has no maximum");
  return {out};
}

// The result is, like a sum's, in i64 where the operand is not floating.
std::vector<TensorType> infer_cumsum(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  dim_attribute(op, operands, "dim", operands[0].shape.size());
  return {{is_floating(operands[0].dtype) ? operands[0].dtype : DType::i64, operands[0].shape}};
}

std::vector<TensorType> infer_add_n(const Op& op, Types operands) {
  require(!operands.empty(), op, operands, "takes at least one operand");
  require(operands[0].dtype != DType::boolean, op, operands, "operands must be numbers, not bool");
  for (const TensorType& type : operands) require(type == operands[0], op, operands, "operands must have one type");
  return {operands[0]};
}

// A reduction's result reshaped to broadcast against the operand: the reduced dims are kept as 1, unless they come first.
Tensor kept(const VjpArguments& a, Tensor result) {
  const TensorType type = a.operands[0].type();
  const std::vector<std::int64_t> dims = dims_attribute(a.op, {&type, 1}, type.shape.size());
  const bool leading = dims.empty() || dims.back() == std::ssize(dims) - 1;
  return leading ? result : reshape(result, reduced(a.op, {&type, 1}, true));
}

Tensors sum_vjp(const VjpArguments& a) {
  return {expand(kept(a, a.cotangents[0]), a.operands[0].shape())};
}

Tensors mean_vjp(const VjpArguments& a) {
  const double count = static_cast<double>(a.operands[0].type().elements()) / static_cast<double>(a.results[0].type().elements());
  return {expand(kept(a, a.cotangents[0] / count), a.operands[0].shape())};
}

// Equal maxima share the cotangent evenly (as ATen).
Tensors amax_vjp(const VjpArguments& a) {
  const Tensor chosen = to(eq(a.operands[0], kept(a, a.results[0])), a.cotangents[0].dtype());
  const std::vector<std::int64_t> dims = dims_attribute(a.op, {}, a.operands[0].shape().size());
  const Tensor share = a.cotangents[0] / sum(chosen, dims, attribute_or(a.op, "keepdim", false));
  return {chosen * kept(a, share)};
}

// Element i is in the sums from i on: in all of them but those before i.
Tensors cumsum_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  const std::int64_t dim = attribute<std::int64_t>(a.op, "dim");
  return {sum(dy, {dim}, true) - (cumsum(dy, static_cast<int>(dim)) - dy)};
}

Tensors add_n_vjp(const VjpArguments& a) {
  return Tensors(a.operands.size(), a.cotangents[0]);
}

// The dims that are kept are cut; the others are where a member's results are terms (`summed`), and else never.
DimNumbers numbers_of_reduction(const LayoutSite& site, bool summed) {
  DimNumbers numbers = numbers_of("*->*", {site.op, site.operands, site.operands, site.members});
  std::vector<int>&from = numbers.operands[0], &to = numbers.results[0];
  const std::vector<std::int64_t> dims = dims_attribute(site.op, site.operands, from.size());
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (!summed) from[static_cast<std::size_t>(dims[i])] = kNeverCut;
    if (attribute_or(site.op, "keepdim", false))
      to[static_cast<std::size_t>(dims[i])] = kNeverCut;
    else
      to.erase(to.begin() + dims[i]);
  }
  return numbers;
}

DimNumbers sum_numbers(const LayoutSite& site) {
  return numbers_of_reduction(site, true);
}
DimNumbers reduction_numbers(const LayoutSite& site) {
  return numbers_of_reduction(site, false);
}

// A range of the elements has one dim.
void local_sum(const LocalSite& site, Op& local) {
  if (site.row.operands[0].is_flat()) local.attributes["dim"] = std::vector<std::int64_t>{0};
}

double flops_add_n(const Op&, Types operands, Types results) {
  return static_cast<double>(operands.size() - 1) * static_cast<double>(results[0].elements());
}

Tensor reduce(std::string_view name, Tensor x, std::vector<std::int64_t> dims, bool keepdim) {
  const std::int64_t rank = x.rank();
  for (std::int64_t& dim : dims) dim = wrap(dim, rank);
  if (dims.empty())
    for (std::int64_t i = 0; i < rank; ++i) dims.push_back(i);
  std::sort(dims.begin(), dims.end());
  return emit(name, {x}, {{"dim", std::move(dims)}, {"keepdim", keepdim}});
}

constexpr OpDefinition reduction(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp,
                                 LayoutRule layout, Linearity linear) {
  return {.name = name, .infer = infer, .vjp = vjp, .flops = flops_by_operand<1>, .layout = layout, .linear = linear};
}

}  // namespace

std::span<const OpDefinition> reduction_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "sum",
       .infer = infer_sum,
       .vjp = sum_vjp,
       .flops = flops_by_operand<1>,
       .layout = by<sum_numbers>,
       .local = local_sum,
       .linear = Linearity::all},
      reduction("mean", infer_mean, mean_vjp, by<reduction_numbers>, Linearity::all),
      reduction("amax", infer_amax, amax_vjp, by<reduction_numbers>, Linearity::none),
      reduction("cumsum", infer_cumsum, cumsum_vjp, other_dims, Linearity::all),
      {.name = "add_n",
       .infer = infer_add_n,
       .vjp = add_n_vjp,
       .flops = flops_add_n,
       .elementwise = true,
       .layout = all_dims,
       .linear = Linearity::all},
  };
  return all;
}

Tensor sum(Tensor x, std::vector<std::int64_t> dims, bool keepdim) {
  return reduce("sum", x, std::move(dims), keepdim);
}
Tensor mean(Tensor x, std::vector<std::int64_t> dims, bool keepdim) {
  return reduce("mean", x, std::move(dims), keepdim);
}
Tensor amax(Tensor x, std::vector<std::int64_t> dims, bool keepdim) {
  return reduce("amax", x, std::move(dims), keepdim);
}

Tensor cumsum(Tensor x, int dim) {
  return emit("cumsum", {x}, {{"dim", wrap(dim, x.rank())}});
}

Tensor add_n(const std::vector<Tensor>& parts) {
  return parts.size() == 1 ? parts[0] : emit_all("add_n", parts)[0];
}

}  // namespace penstock
