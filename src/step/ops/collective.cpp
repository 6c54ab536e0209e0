// SPDX-License-Identifier: Apache-2.0
// Ops that all members of a mesh axis run together, each with an operand of its own. Attributes: `axis`, its name; `size`, its number of
// members.
#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"
#include "penstock/program.h"

namespace penstock {
namespace {

std::int64_t axis_size(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  require(!attribute<std::string>(op, "axis").empty(), op, operands, "the axis has no name");
  const std::int64_t size = attribute<std::int64_t>(op, "size");
  require(size >= 1, op, operands, "an axis has at least one member");
  return size;
}

void require_summable(const Op& op, Types operands) {
  if (!can_be_summed(operands[0].dtype))
    fail(op, operands, concat("devices cannot sum ", name(operands[0].dtype)), "f32, f64, bf16, i32 and i64 can be: cast with to()");
}

// The size of dim "dim" of `out`, for writing. Throws Error unless it divides into as many equal pieces as asked for.
std::int64_t& cut_size(const Op& op, Types operands, TensorType& out, std::int64_t pieces) {
  std::int64_t& size = out.shape[dim_attribute(op, operands, "dim", out.shape.size())];
  if (size % pieces != 0) fail(op, operands, concat("the dim's size of ", size, " does not divide into ", pieces, " pieces"));
  return size;
}

std::vector<TensorType> infer_all_reduce(const Op& op, Types operands) {
  axis_size(op, operands);
  require_summable(op, operands);
  return {operands[0]};
}

std::vector<TensorType> infer_all_gather(const Op& op, Types operands) {
  const std::int64_t members = axis_size(op, operands);
  TensorType out = operands[0];
  std::int64_t& size = out.shape[dim_attribute(op, operands, "dim", out.shape.size())];
  if (__builtin_mul_overflow(size, members, &size)) fail(op, operands, "the result is too large");
  require_shape(op, operands, out.shape);
  return {out};
}

std::vector<TensorType> infer_reduce_scatter(const Op& op, Types operands) {
  const std::int64_t members = axis_size(op, operands);
  require_summable(op, operands);
  TensorType out = operands[0];
  cut_size(op, operands, out, members) /= members;
  return {out};
}

std::vector<TensorType> infer_all_to_all(const Op& op, Types operands) {
  const std::int64_t members = axis_size(op, operands);
  TensorType out = operands[0];
  cut_size(op, operands, out, members);
  return {out};
}

// Infers broadcast and keep_member. `root` must be a member.
std::vector<TensorType> infer_of_root(const Op& op, Types operands) {
  const std::int64_t members = axis_size(op, operands), root = attribute<std::int64_t>(op, "root");
  require(root >= 0 && root < members, op, operands, "root is no member of the axis");
  return {operands[0]};
}

// Member m gets what member (m + by) mod size gives, of "length" along "dim": the members may give parts of different lengths.
std::vector<TensorType> infer_shift(const Op& op, Types operands) {
  const std::int64_t members = axis_size(op, operands), by = attribute<std::int64_t>(op, "by");
  require(by > 0 && by < members, op, operands, "by is no distance between two members");
  require(attribute<std::int64_t>(op, "message") >= 0, op, operands, "message is negative");
  TensorType out = operands[0];
  out.shape[dim_attribute(op, operands, "dim", out.shape.size())] = attribute<std::int64_t>(op, "length");
  require_shape(op, operands, out.shape);
  return {out};
}

// Runs the collective on the cotangent, in f32 where devices cannot sum the cotangent's own dtype.
Tensor summed(std::string_view op, Tensor cotangent, const Attributes& attributes) {
  const DType dtype = cotangent.dtype();
  return to(emit(op, {to(cotangent, can_be_summed(dtype) ? dtype : DType::f32)}, attributes), dtype);
}

Attributes axis_of(const VjpArguments& a) {
  return {{"axis", attribute<std::string>(a.op, "axis")}, {"size", attribute<std::int64_t>(a.op, "size")}};
}

Tensors all_reduce_vjp(const VjpArguments& a) {
  return {summed("all_reduce", a.cotangents[0], a.op.attributes)};
}

Tensors all_gather_vjp(const VjpArguments& a) {
  return {summed("reduce_scatter", a.cotangents[0], a.op.attributes)};
}

Tensors reduce_scatter_vjp(const VjpArguments& a) {
  return {emit("all_gather", {a.cotangents[0]}, a.op.attributes)};
}

// The root alone gets the sum: the other members' operands were not read.
Tensors broadcast_vjp(const VjpArguments& a) {
  return {emit("keep_member", {summed("all_reduce", a.cotangents[0], axis_of(a))}, a.op.attributes)};
}

Tensors reduce_gradient_vjp(const VjpArguments& a) {
  return {summed("all_reduce", a.cotangents[0], axis_of(a))};
}

// All_to_all and keep_member are their own transposes, so their gradient is the same op.
Tensors same_vjp(const VjpArguments& a) {
  return {emit(a.op.name, {a.cotangents[0]}, a.op.attributes)};
}

std::vector<TensorType> infer_reduce_gradient(const Op& op, Types operands) {
  axis_size(op, operands);
  return {operands[0]};
}

// A member adds up its share of the elements, as in a ring.
double flops_of_sum(const Op& op, Types operands, Types) {
  const auto members = static_cast<double>(attribute<std::int64_t>(op, "size"));
  return static_cast<double>(operands[0].elements()) * (members - 1) / members;
}

// Devices move equal pieces that are multiples of kAlignment: a piece that is one stays one on all members.
bool is_aligned(const Op& op, const TensorType& operand) {
  const std::int64_t pieces = op.name == "all_gather" ? 1 : attribute<std::int64_t>(op, "size");
  return operand.bytes() % (pieces * kAlignment) == 0;
}

std::optional<LayoutRow> pieces_layout(const LayoutSite& site, std::size_t operand, const Layout& split) {
  std::optional<LayoutRow> row = other_dims(site, operand, split);
  if (!row || !is_aligned(site.op, site.operands[0])) return row;
  for (std::int64_t m = 0; m < site.members; ++m)
    if (!is_aligned(site.op, local_type(site.operands[0], row->operands[0], site.members, m))) return std::nullopt;
  return row;
}

Attributes along(const MeshAxis& axis, Attributes attributes = {}) {
  attributes.insert({{"axis", axis.name}, {"size", axis.size}});
  return attributes;
}

constexpr OpDefinition collective(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp,
                                  LayoutRule layout) {
  return {.name = name, .infer = infer, .vjp = vjp, .flops = flops_none, .collective = true, .layout = layout, .linear = Linearity::all};
}

constexpr OpDefinition kCollectiveOps[] = {
    {.name = "all_reduce",
     .infer = infer_all_reduce,
     .vjp = all_reduce_vjp,
     .flops = flops_of_sum,
     .elementwise = true,
     .collective = true,
     .layout = all_dims,
     .linear = Linearity::all},
    collective("all_gather", infer_all_gather, all_gather_vjp, pieces_layout),
    {.name = "reduce_scatter",
     .infer = infer_reduce_scatter,
     .vjp = reduce_scatter_vjp,
     .flops = flops_of_sum,
     .collective = true,
     .layout = pieces_layout,
     .linear = Linearity::all},
    collective("broadcast", infer_of_root, broadcast_vjp, all_dims),
    collective("all_to_all", infer_all_to_all, same_vjp, pieces_layout),
    collective("keep_member", infer_of_root, same_vjp, all_dims),
    collective("shift_members", infer_shift, nullptr, other_dims),
    collective("reduce_gradient", infer_reduce_gradient, reduce_gradient_vjp, all_dims),
};

}  // namespace

std::span<const OpDefinition> collective_ops() {
  return kCollectiveOps;
}

bool is_collective(const Op& op) {
  const OpDefinition* definition = find_op(op.name);
  return definition && definition->collective;
}

Tensor all_reduce(Tensor x, const MeshAxis& axis) {
  return emit("all_reduce", {x}, along(axis));
}
Tensor all_gather(Tensor x, int dim, const MeshAxis& axis) {
  return emit("all_gather", {x}, along(axis, {{"dim", wrap(dim, x.rank())}}));
}
Tensor reduce_scatter(Tensor x, int dim, const MeshAxis& axis) {
  return emit("reduce_scatter", {x}, along(axis, {{"dim", wrap(dim, x.rank())}}));
}
Tensor broadcast(Tensor x, std::int64_t root, const MeshAxis& axis) {
  return emit("broadcast", {x}, along(axis, {{"root", root}}));
}
Tensor all_to_all(Tensor x, int dim, const MeshAxis& axis) {
  return emit("all_to_all", {x}, along(axis, {{"dim", wrap(dim, x.rank())}}));
}
Tensor keep_member(Tensor x, std::int64_t root, const MeshAxis& axis) {
  return emit("keep_member", {x}, along(axis, {{"root", root}}));
}
Tensor reduce_gradient(Tensor x, const MeshAxis& axis) {
  return emit("reduce_gradient", {x}, along(axis));
}

}  // namespace penstock
