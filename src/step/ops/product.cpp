// SPDX-License-Identifier: Apache-2.0
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"

namespace penstock {
namespace {

void require_matrices(const Op& op, Types operands, std::size_t first) {
  require_count(op, operands, first + 2, first + 2);
  require_floating(op, operands);
  require_equal_dtypes(op, operands);
}

std::vector<TensorType> infer_linear(const Op& op, Types operands) {
  require_count(op, operands, 2, 3);
  require_floating(op, operands);
  require_equal_dtypes(op, operands);
  const Shape& x = operands[0].shape;
  const Shape& weight = operands[1].shape;
  require(weight.size() == 2 && !x.empty() && x.back() == weight[1], op, operands, "needs x[..., in] and weight[out, in]");
  require(operands.size() == 2 || operands[2].shape == Shape{weight[0]}, op, operands, "needs bias[out]");
  Shape out = x;
  out.back() = weight[0];
  return {{operands[0].dtype, out}};
}

std::vector<TensorType> infer_mm(const Op& op, Types operands) {
  require_matrices(op, operands, 0);
  const Shape &a = operands[0].shape, &b = operands[1].shape;
  require(a.size() == 2 && b.size() == 2 && a[1] == b[0], op, operands, "needs a[n, k] and b[k, m]");
  return {{operands[0].dtype, {a[0], b[1]}}};
}

std::vector<TensorType> infer_bmm(const Op& op, Types operands) {
  require_matrices(op, operands, 0);
  const Shape &a = operands[0].shape, &b = operands[1].shape;
  require(a.size() == 3 && b.size() == 3 && a[0] == b[0] && a[2] == b[1], op, operands, "needs a[batch, n, k] and b[batch, k, m]");
  return {{operands[0].dtype, {a[0], a[1], b[2]}}};
}

std::vector<TensorType> infer_addmm(const Op& op, Types operands) {
  require_matrices(op, operands, 1);
  const Shape &a = operands[1].shape, &b = operands[2].shape;
  require(a.size() == 2 && b.size() == 2 && a[1] == b[0], op, operands, "needs a[n, k] and b[k, m]");
  const TensorType out{operands[0].dtype, {a[0], b[1]}};
  const TensorType sides[] = {operands[0], out};
  require(broadcast(op, sides) == out.shape, op, operands, "the first operand must broadcast to [n, m]");
  return {out};
}

std::vector<TensorType> infer_matmul(const Op& op, Types operands) {
  require_matrices(op, operands, 0);
  Shape a = operands[0].shape, b = operands[1].shape;
  require(a.size() >= 2 && b.size() >= 2 && a.back() == b[b.size() - 2], op, operands, "needs a[..., n, k] and b[..., k, m]");
  const std::int64_t rows = a[a.size() - 2], columns = b.back();
  a.resize(a.size() - 2);
  b.resize(b.size() - 2);
  const TensorType leading[] = {{operands[0].dtype, a}, {operands[0].dtype, b}};
  Shape out = broadcast(op, leading);
  out.push_back(rows);
  out.push_back(columns);
  return {{operands[0].dtype, out}};
}

// x[..., k] as a matrix [n, k].
Tensor matrix(Tensor x) {
  return reshape(x, {-1, x.size(-1)});
}

Tensor flipped(Tensor x) {
  return transpose(x, -2, -1);
}

// The weight's gradient is one product of matrices, so that an executor can add it to an accumulator as it computes it.
Tensors linear_vjp(const VjpArguments& a) {
  const Tensor x = a.operands[0], weight = a.operands[1], dy = matrix(a.cotangents[0]);
  Tensors out(a.operands.size());
  if (a.wanted[0]) out[0] = reshape(mm(dy, weight), x.shape());
  if (a.wanted[1]) out[1] = mm(flipped(dy), matrix(x));
  if (a.operands.size() == 3 && a.wanted[2]) out[2] = sum(dy, {0});
  return out;
}

// The gradients of mm and bmm.
template <Tensor (*Product)(Tensor, Tensor)>
Tensors product_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  Tensors out(2);
  if (a.wanted[0]) out[0] = Product(dy, flipped(a.operands[1]));
  if (a.wanted[1]) out[1] = Product(flipped(a.operands[0]), dy);
  return out;
}

Tensors addmm_vjp(const VjpArguments& a) {
  const Tensor dy = a.cotangents[0];
  Tensors out(3);
  if (a.wanted[0]) out[0] = sum_to(dy, a.operands[0].shape());
  if (a.wanted[1]) out[1] = mm(dy, flipped(a.operands[2]));
  if (a.wanted[2]) out[2] = mm(flipped(a.operands[1]), dy);
  return out;
}

Tensors matmul_vjp(const VjpArguments& a) {
  const Tensor x = a.operands[0], y = a.operands[1], dz = a.cotangents[0];
  Tensors out(2);
  if (a.wanted[0]) out[0] = sum_to(matmul(dz, flipped(y)), x.shape());
  if (!a.wanted[1]) return out;
  // Where one matrix serves every batch its gradient is one product over all rows instead of a sum of products.
  out[1] = y.rank() == 2 ? mm(flipped(matrix(x)), matrix(dz)) : sum_to(matmul(flipped(x), dz), y.shape());
  return out;
}

// The operand that is added to the product broadcasts to it.
DimNumbers addmm_numbers(const LayoutSite& site) {
  constexpr std::string_view names[] = {",nk,km->nm", "m,nk,km->nm", "nm,nk,km->nm"};
  return numbers_of(names[site.operands[0].shape.size()], site);
}

// Where the product is a term, the first member alone adds to it.
void local_addmm(const LocalSite& site, Op& local) {
  if (!site.row.results[0].is_term() || site.member == 0) return;
  local.name = "mm";
  local.operands.erase(local.operands.begin());
}

double flops_linear(const Op&, Types operands, Types results) {
  return 2 * static_cast<double>(results[0].elements()) * static_cast<double>(operands[0].shape.back());
}

// Flops: in every other product the inner size stands at the end of the operand before the last.
double flops_product(const Op&, Types operands, Types results) {
  return 2 * static_cast<double>(results[0].elements()) * static_cast<double>(operands[operands.size() - 2].shape.back());
}

}  // namespace

std::span<const OpDefinition> product_ops() {
  static constexpr OpDefinition all[] = {
      {.name = "linear",
       .infer = infer_linear,
       .vjp = linear_vjp,
       .flops = flops_linear,
       .layout = by<named<"*k,mk,m->*m">>,
       .local = local_bias},
      {.name = "mm", .infer = infer_mm, .vjp = product_vjp<mm>, .flops = flops_product, .layout = by<named<"nk,km->nm">>},
      {.name = "bmm", .infer = infer_bmm, .vjp = product_vjp<bmm>, .flops = flops_product, .layout = by<named<"bnk,bkm->bnm">>},
      {.name = "addmm", .infer = infer_addmm, .vjp = addmm_vjp, .flops = flops_product, .layout = by<addmm_numbers>, .local = local_addmm},
      {.name = "matmul", .infer = infer_matmul, .vjp = matmul_vjp, .flops = flops_product, .layout = by<named<"*nk,*km->*nm">>},
  };
  return all;
}

Tensor linear(Tensor x, Tensor weight, Tensor bias) {
  return bias ? emit("linear", {x, weight, bias}) : emit("linear", {x, weight});
}

Tensor mm(Tensor a, Tensor b) {
  return emit("mm", {a, b});
}
Tensor bmm(Tensor a, Tensor b) {
  return emit("bmm", {a, b});
}
Tensor addmm(Tensor bias, Tensor a, Tensor b) {
  return emit("addmm", {bias, a, b});
}
Tensor matmul(Tensor a, Tensor b) {
  return emit("matmul", {a, b});
}

}  // namespace penstock
