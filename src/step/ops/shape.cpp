// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "base/text.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// --- reshape, transpose, permute, expand, unsqueeze, squeeze

// `shape` with its -1, if any, replaced by the size that `elements` leave for it; unchanged where there is none.
Shape resolve(Shape shape, std::int64_t elements) {
  const auto open = std::find(shape.begin(), shape.end(), -1);
  if (open == shape.end()) return shape;
  std::int64_t rest = 1;
  for (auto size = shape.begin(); size != shape.end(); ++size)
    if (size != open && (*size <= 0 || __builtin_mul_overflow(rest, *size, &rest))) return shape;
  if (elements % rest == 0) *open = elements / rest;
  return shape;
}

std::vector<TensorType> infer_reshape(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const TensorType out{operands[0].dtype, resolve(attribute<Integers>(op, "shape"), operands[0].elements())};
  require_shape(op, operands, out.shape);
  if (out.elements() != operands[0].elements())
    fail(op, operands, concat("the operand has ", operands[0].elements(), " elements, the shape ", out.elements()));
  return {out};
}

std::vector<TensorType> infer_transpose(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  TensorType out = operands[0];
  const std::size_t rank = out.shape.size();
  std::swap(out.shape[dim_attribute(op, operands, "dim0", rank)], out.shape[dim_attribute(op, operands, "dim1", rank)]);
  return {out};
}

Integers permutation(const Op& op, std::size_t rank) {
  Integers dims = attribute<Integers>(op, "dims");
  for (std::int64_t& dim : dims) dim = wrap(dim, static_cast<std::int64_t>(rank));
  return dims;
}

std::vector<TensorType> infer_permute(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const Integers dims = permutation(op, operands[0].shape.size());
  Integers sorted = dims;
  std::sort(sorted.begin(), sorted.end());
  bool complete = dims.size() == operands[0].shape.size();
  for (std::size_t i = 0; i < sorted.size(); ++i) complete = complete && sorted[i] == static_cast<std::int64_t>(i);
  require(complete, op, operands, "dims must name every dim of the operand once");
  TensorType out{operands[0].dtype, {}};
  for (std::int64_t dim : dims) out.shape.push_back(operands[0].shape[dim]);
  return {out};
}

std::vector<TensorType> infer_expand(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const Shape& from = operands[0].shape;
  Shape size = attribute<Integers>(op, "size");
  require(size.size() >= from.size(), op, operands, "the operand has more dims than the size");
  const std::size_t leading = size.size() - from.size();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (size[leading + i] == -1) size[leading + i] = from[i];
    require(from[i] == 1 || from[i] == size[leading + i], op, operands, "only dims of size 1 expand");
  }
  require_shape(op, operands, size);
  return {{operands[0].dtype, size}};
}

std::vector<TensorType> infer_unsqueeze(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  TensorType out = operands[0];
  const std::size_t dim = dim_attribute(op, operands, "dim", out.shape.size() + 1);
  out.shape.insert(out.shape.begin() + static_cast<std::ptrdiff_t>(dim), 1);
  return {out};
}

std::vector<TensorType> infer_squeeze(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  TensorType out = operands[0];
  const std::size_t dim = dim_attribute(op, operands, "dim", out.shape.size());
  require(out.shape[dim] == 1, op, operands, "only a dim of size 1 can be squeezed");
  out.shape.erase(out.shape.begin() + static_cast<std::ptrdiff_t>(dim));
  return {out};
}

Tensors reshape_vjp(const VjpArguments& a) {
  return {reshape(a.cotangents[0], a.operands[0].shape())};
}

Tensors transpose_vjp(const VjpArguments& a) {
  const auto dim = [&](std::string_view name) { return static_cast<int>(attribute<std::int64_t>(a.op, name)); };
  return {transpose(a.cotangents[0], dim("dim0"), dim("dim1"))};
}

Tensors permute_vjp(const VjpArguments& a) {
  const Integers dims = permutation(a.op, a.operands[0].shape().size());
  Integers inverse(dims.size());
  for (std::size_t i = 0; i < dims.size(); ++i) inverse[dims[i]] = static_cast<std::int64_t>(i);
  return {permute(a.cotangents[0], inverse)};
}

Tensors expand_vjp(const VjpArguments& a) {
  return {sum_to(a.cotangents[0], a.operands[0].shape())};
}

// --- slice, select, cat, split

struct Range {
  std::int64_t start, end, step;
  std::int64_t count() const { return end <= start ? 0 : (end - start - 1) / step + 1; }
};

// ATen's rule: negative positions count from the end, and all are clipped to [0, size].
Range clipped(std::int64_t start, std::int64_t end, std::int64_t step, std::int64_t size) {
  return {std::clamp<std::int64_t>(wrap(start, size), 0, size), std::clamp<std::int64_t>(wrap(end, size), 0, size), step};
}

Range range_of(const Op& op, Types operands, std::int64_t size) {
  const std::int64_t step = attribute_or(op, "step", std::int64_t{1});
  require(step >= 1, op, operands, "step must be at least 1");
  return clipped(attribute_or(op, "start", std::int64_t{0}), attribute_or(op, "end", std::numeric_limits<std::int64_t>::max()), step, size);
}

std::vector<TensorType> infer_slice(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  TensorType out = operands[0];
  std::int64_t& size = out.shape[dim_attribute(op, operands, "dim", out.shape.size())];
  size = range_of(op, operands, size).count();
  return {out};
}

std::vector<TensorType> infer_select(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  TensorType out = operands[0];
  const std::size_t dim = dim_attribute(op, operands, "dim", out.shape.size());
  const std::int64_t index = wrap(attribute<std::int64_t>(op, "index"), out.shape[dim]);
  require(index >= 0 && index < out.shape[dim], op, operands, "index is outside the dim");
  out.shape.erase(out.shape.begin() + static_cast<std::ptrdiff_t>(dim));
  return {out};
}

// The gradient of a slice or a select has the sizes of what that takes a part of.
template <std::vector<TensorType> (*Taking)(const Op&, Types)>
std::vector<TensorType> infer_taken_backward(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const TensorType out{operands[0].dtype, attribute<Integers>(op, "input_sizes")};
  require_shape(op, operands, out.shape);
  require(Taking(op, {&out, 1})[0] == operands[0], op, operands,
          Taking == infer_slice ? "the operand is not such a slice of input_sizes" : "the operand is not such a part of input_sizes");
  return {out};
}

std::vector<TensorType> infer_cat(const Op& op, Types operands) {
  require(!operands.empty(), op, operands, "takes at least one operand");
  require_equal_dtypes(op, operands);
  TensorType out = operands[0];
  const std::size_t dim = dim_attribute(op, operands, "dim", out.shape.size());
  for (const TensorType& type : operands.subspan(1)) {
    require(type.shape.size() == out.shape.size(), op, operands, "operands must have equally many dims");
    for (std::size_t i = 0; i < out.shape.size(); ++i)
      require(i == dim || type.shape[i] == out.shape[i], op, operands, "sizes may differ along dim only");
    out.shape[dim] += type.shape[dim];
  }
  return {out};
}

std::vector<TensorType> infer_split(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const std::size_t dim = dim_attribute(op, operands, "dim", operands[0].shape.size());
  const std::int64_t piece = attribute<std::int64_t>(op, "split_size"), whole = operands[0].shape[dim];
  require(piece >= 1, op, operands, "split_size must be at least 1");
  require(whole >= 1 && (whole - 1) / piece < (1 << 16), op, operands, "a split has 1 to 65536 pieces");
  std::vector<TensorType> out;
  for (std::int64_t begin = 0; begin < whole; begin += std::min(piece, whole - begin)) {
    out.push_back(operands[0]);
    out.back().shape[dim] = std::min(piece, whole - begin);
  }
  return out;
}

// The gradient of a slice or a select.
Tensors taken_vjp(const VjpArguments& a) {
  return {emit(a.op.name + "_backward", {a.cotangents[0]}, with(a.op.attributes, "input_sizes", a.operands[0].shape()))};
}

// The gradient of such a gradient.
Tensors taken_backward_vjp(const VjpArguments& a) {
  Attributes attributes = a.op.attributes;
  attributes.erase("input_sizes");
  return {emit(a.op.name.substr(0, a.op.name.find('_')), {a.cotangents[0]}, std::move(attributes))};
}

Tensors cat_vjp(const VjpArguments& a) {
  const int dim = static_cast<int>(attribute<std::int64_t>(a.op, "dim"));
  Tensors out(a.operands.size());
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::int64_t end = begin + a.operands[i].size(dim);
    if (a.wanted[i]) out[i] = slice(a.cotangents[0], dim, begin, end);
    begin = end;
  }
  return out;
}

// Pieces nobody used count as zeros.
Tensors split_vjp(const VjpArguments& a) {
  Tensors parts(a.cotangents.begin(), a.cotangents.end());
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (!parts[i]) parts[i] = full_like(a.results[i], 0);
  return {cat(parts, static_cast<int>(attribute<std::int64_t>(a.op, "dim")))};
}

// --- casts and constants

std::vector<TensorType> infer_to(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  return {{attribute<DType>(op, "dtype"), operands[0].shape}};
}

std::vector<TensorType> infer_full(const Op& op, Types operands) {
  require_count(op, operands, 0, 0);
  number_attribute(op, "fill_value");
  const TensorType out{attribute<DType>(op, "dtype"), attribute<Integers>(op, "size")};
  require_shape(op, operands, out.shape);
  return {out};
}

std::vector<TensorType> infer_arange(const Op& op, Types operands) {
  require_count(op, operands, 0, 0);
  const TensorType out{attribute<DType>(op, "dtype"), {attribute<std::int64_t>(op, "end")}};
  require(out.dtype != DType::boolean, op, operands, "counts in numbers, not bool");
  require_shape(op, operands, out.shape);
  return {out};
}

Tensors to_vjp(const VjpArguments& a) {
  return {to(a.cotangents[0], a.operands[0].dtype())};
}

// --- what members compute of parts

std::optional<LayoutRow> as_reshaped(const LayoutSite& site, std::size_t, const Layout& split) {
  const std::optional<Layout> result = reshaped(split, site.operands[0].shape, site.results[0].shape, site.members);
  return result ? std::optional<LayoutRow>({{split}, {*result}}) : std::nullopt;
}

DimNumbers transposed_numbers(const LayoutSite& site) {
  DimNumbers numbers = numbers_of("*->*", site);
  std::vector<int>& of = numbers.results[0];
  std::swap(of[dim_attribute(site.op, site.operands, "dim0", of.size())], of[dim_attribute(site.op, site.operands, "dim1", of.size())]);
  return numbers;
}

DimNumbers permuted_numbers(const LayoutSite& site) {
  DimNumbers numbers = numbers_of("*->*", site);
  const Integers dims = permutation(site.op, numbers.operands[0].size());
  for (std::size_t i = 0; i < dims.size(); ++i) numbers.results[0][i] = numbers.operands[0][static_cast<std::size_t>(dims[i])];
  return numbers;
}

// The numbers of `whole`'s dims, and the same without the dim of which `part` has one place.
std::pair<std::vector<int>, std::vector<int>> numbers_of_selection(const Op& op, const TensorType& whole) {
  const std::size_t dim = dim_attribute(op, {&whole, 1}, "dim", whole.shape.size());
  std::vector<int> of(whole.shape.size());
  for (std::size_t d = 0; d < of.size(); ++d) of[d] = d == dim ? kNeverCut : static_cast<int>(d);
  std::vector<int> part = of;
  part.erase(part.begin() + static_cast<std::ptrdiff_t>(dim));
  return {of, part};
}
DimNumbers selected_numbers(const LayoutSite& site) {
  auto [whole, part] = numbers_of_selection(site.op, site.operands[0]);
  return {{std::move(whole)}, {std::move(part)}};
}
DimNumbers selected_backward_numbers(const LayoutSite& site) {
  auto [whole, part] = numbers_of_selection(site.op, site.results[0]);
  return {{std::move(part)}, {std::move(whole)}};
}

// The layouts of tensors that are split along `split`'s dim into blocks of this size; none: a tensor is not so many whole blocks.
std::optional<std::vector<Layout>> in_blocks(Types types, Layout split, std::int64_t block) {
  std::vector<Layout> out;
  for (const TensorType& type : types) {
    const std::int64_t size = type.shape[split.dim];
    if (size == 0 || size % block != 0) return std::nullopt;
    split.outer = size / block;
    out.push_back(split);
  }
  return out;
}

// Whether what a slice takes begins at a block and leaves nothing out.
bool takes_blocks(const LayoutSite& site, std::int64_t dim, std::int64_t block) {
  if (site.op.name != "slice" && site.op.name != "slice_backward") return true;
  const TensorType& whole = site.op.name == "slice" ? site.operands[0] : site.results[0];
  const Range range = range_of(site.op, site.operands, whole.shape[dim]);
  return range.step == 1 && range.start % block == 0;
}

// The rows of ops that put tensors one behind the other along the attribute "dim", or take them apart: along that dim the members do it on
// parts where all tensors are whole blocks of one size.
std::optional<LayoutRow> blocks_along_dim(const LayoutSite& site, std::size_t operand, const Layout& split) {
  const Shape& shape = site.operands[operand].shape;
  if (static_cast<std::size_t>(split.dim) != dim_attribute(site.op, site.operands, "dim", shape.size()))
    return other_dims(site, operand, split);
  const std::int64_t block = shape[split.dim] / split.outer;
  if (split.mirrored || !takes_blocks(site, split.dim, block)) return std::nullopt;
  auto operands = in_blocks(site.operands, split, block), results = in_blocks(site.results, split, block);
  if (!operands || !results) return std::nullopt;
  return LayoutRow{std::move(*operands), std::move(*results)};
}

// The types on both sides of a slice of one member: what it takes, and of what.
struct SliceTypes {
  const TensorType &whole, &part;
};

// Sets a slice's range where it is cut itself, which is out of `shape` on all members.
void set_slice(const LocalSite& site, const Layout& layout, const Shape& shape, const SliceTypes& local_types, Op& local) {
  const LayoutSite& whole = site.whole;
  const std::size_t dim = dim_attribute(whole.op, whole.operands, "dim", shape.size());
  if (!layout.is_split() || static_cast<std::size_t>(layout.dim) != dim) return;
  const std::int64_t blocks = range_of(whole.op, whole.operands, shape[dim]).start / (shape[dim] / layout.outer);
  const std::int64_t start = blocks * (local_types.whole.shape[dim] / layout.outer);
  local.attributes["start"] = start;
  local.attributes["end"] = start + local_types.part.shape[dim];
}
void local_slice(const LocalSite& site, Op& local) {
  set_slice(site, site.row.operands[0], site.whole.operands[0].shape, {site.operands[0], site.results[0]}, local);
}
void local_slice_backward(const LocalSite& site, Op& local) {
  local.attributes["input_sizes"] = site.results[0].shape;
  set_slice(site, site.row.results[0], site.whole.results[0].shape, {site.results[0], site.operands[0]}, local);
}

void local_split(const LocalSite& site, Op& local) {
  const LayoutSite& whole = site.whole;
  local.attributes["split_size"] = site.results[0].shape[dim_attribute(whole.op, whole.operands, "dim", whole.operands[0].shape.size())];
}

Builder& builder_of(Tensor like) {
  if (!like) throw Error("a constant is made in the graph of a tensor, and this tensor is none");
  return *like.builder();
}

constexpr OpDefinition view(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp, LayoutRule layout,
                            LocalRule local = nullptr) {
  return {.name = name, .infer = infer, .vjp = vjp, .views = 0, .layout = layout, .local = local, .linear = Linearity::all};
}

// An op that moves elements to a tensor of its own.
constexpr OpDefinition mover(std::string_view name, decltype(OpDefinition::infer) infer, decltype(OpDefinition::vjp) vjp, LayoutRule layout,
                             LocalRule local = nullptr) {
  return {.name = name, .infer = infer, .vjp = vjp, .flops = flops_none, .layout = layout, .local = local, .linear = Linearity::all};
}

constexpr OpDefinition kShapeOps[] = {
    view("reshape", infer_reshape, reshape_vjp, as_reshaped, local_shape<"shape">),
    view("transpose", infer_transpose, transpose_vjp, by<transposed_numbers>),
    view("permute", infer_permute, permute_vjp, by<permuted_numbers>),
    {.name = "expand",
     .infer = infer_expand,
     .vjp = expand_vjp,
     .views = 0,
     .layout = all_dims,
     .layout_result = result_by<named<"*->*">>,
     .local = local_shape<"size">,
     .linear = Linearity::all},
    view("unsqueeze", infer_unsqueeze, reshape_vjp, as_reshaped),
    view("squeeze", infer_squeeze, reshape_vjp, as_reshaped),
    view("slice", infer_slice, taken_vjp, blocks_along_dim, local_slice),
    mover("slice_backward", infer_taken_backward<infer_slice>, taken_backward_vjp, blocks_along_dim, local_slice_backward),
    view("select", infer_select, taken_vjp, by<selected_numbers>),
    mover("select_backward", infer_taken_backward<infer_select>, taken_backward_vjp, by<selected_backward_numbers>,
          local_shape<"input_sizes">),
    mover("cat", infer_cat, cat_vjp, blocks_along_dim),
    view("split", infer_split, split_vjp, blocks_along_dim, local_split),
    {.name = "to", .infer = infer_to, .vjp = to_vjp, .elementwise = true, .layout = all_dims},
    {.name = "full", .infer = infer_full, .flops = flops_none},
    {.name = "arange", .infer = infer_arange, .flops = flops_none},
};

}  // namespace

std::span<const OpDefinition> shape_ops() {
  return kShapeOps;
}

Tensor reshape(Tensor x, Shape shape) {
  shape = resolve(std::move(shape), x.type().elements());
  // Only the last shape of two reshapes in a row counts; the first op stays for its other readers, if any.
  if (const Op* before = x.builder()->producer(ValueId(x.value())); before && before->name == "reshape")
    x = Tensor(x.builder(), before->operands[0].value);
  return shape == x.shape() ? x : emit("reshape", {x}, {{"shape", std::move(shape)}});
}

Tensor transpose(Tensor x, int dim0, int dim1) {
  const std::int64_t first = wrap(dim0, x.rank()), second = wrap(dim1, x.rank());
  return emit("transpose", {x}, {{"dim0", std::min(first, second)}, {"dim1", std::max(first, second)}});
}

Tensor permute(Tensor x, std::vector<std::int64_t> dims) {
  for (std::int64_t& dim : dims) dim = wrap(dim, x.rank());
  return emit("permute", {x}, {{"dims", std::move(dims)}});
}

Tensor expand(Tensor x, Shape shape) {
  return shape == x.shape() ? x : emit("expand", {x}, {{"size", std::move(shape)}});
}

Tensor unsqueeze(Tensor x, int dim) {
  return emit("unsqueeze", {x}, {{"dim", wrap(dim, x.rank() + 1)}});
}

Tensor squeeze(Tensor x, int dim) {
  return emit("squeeze", {x}, {{"dim", wrap(dim, x.rank())}});
}

Tensor slice(Tensor x, int dim, std::int64_t start, std::int64_t end, std::int64_t step) {
  const std::int64_t wrapped = wrap(dim, x.rank());
  if (wrapped >= 0 && wrapped < x.rank()) {
    const Range range = clipped(start, end, step, x.size(dim));
    start = range.start;
    end = range.end;
  }
  return emit("slice", {x}, {{"dim", wrapped}, {"start", start}, {"end", end}, {"step", step}});
}

Tensor select(Tensor x, int dim, std::int64_t index) {
  return emit("select", {x}, {{"dim", wrap(dim, x.rank())}, {"index", index}});
}

Tensor cat(const std::vector<Tensor>& parts, int dim) {
  if (parts.empty()) throw Error("cat: takes at least one operand");
  return emit_all("cat", parts, {{"dim", wrap(dim, parts[0].rank())}})[0];
}

std::vector<Tensor> split(Tensor x, std::int64_t size, int dim) {
  return emit_all("split", {&x, 1}, {{"split_size", size}, {"dim", wrap(dim, x.rank())}});
}

Tensor to(Tensor x, DType dtype) {
  return x.dtype() == dtype ? x : emit("to", {x}, {{"dtype", dtype}});
}

Tensor full(Tensor like, Shape shape, double value, DType dtype) {
  return emit_constant(builder_of(like), "full", {{"size", std::move(shape)}, {"fill_value", value}, {"dtype", dtype}});
}

Tensor full_like(Tensor like, double value) {
  return full(like, like.shape(), value, like.dtype());
}

Tensor arange(Tensor like, std::int64_t end, DType dtype) {
  return emit_constant(builder_of(like), "arange", {{"end", end}, {"dtype", dtype}});
}

}  // namespace penstock
