// SPDX-License-Identifier: Apache-2.0
// Images [n, channels, ...] of other sizes: average pooling and interpolation. libtorch's dispatcher computes them, by their names.
#include <algorithm>
#include <string>

#include "base/text.h"
#include "base/words.h"
#include "ops/builder.h"
#include "ops/definition.h"
#include "ops/infer.h"
#include "ops/layouts.h"
#include "penstock/error.h"

namespace penstock {
namespace {

// Returns the number of dims of places that an op is for, as its name says: 1d, 2d or 3d.
std::size_t resampled_dims(const Op& op) {
  return static_cast<std::size_t>(op.name[op.name.find_first_of("123")] - '0');
}

const Integers& sizes_attribute(const Op& op, Types operands, std::string_view name) {
  const Integers& numbers = attribute<Integers>(op, name);
  if (numbers.size() != resampled_dims(op))
    fail(op, operands, concat(name, " must be ", counted(static_cast<std::int64_t>(resampled_dims(op)), "number")));
  return numbers;
}

void require_resampled(const Op& op, Types operands, const TensorType& x) {
  if (!is_floating(x.dtype) || x.shape.size() != resampled_dims(op) + 2)
    fail(op, operands,
         concat("needs floating x[n, channels, ...] with ", counted(static_cast<std::int64_t>(resampled_dims(op)), "dim"), " of places"));
  require(std::ranges::all_of(x.shape, [](std::int64_t size) { return size >= 1; }), op, operands, "an image has no empty dim");
}

// A window that is not whole counts where "ceil_mode" says so, unless it would begin behind the image.
TensorType pooled(const Op& op, Types operands, TensorType x) {
  require_resampled(op, operands, x);
  const bool ceil = attribute<bool>(op, "ceil_mode");
  attribute<bool>(op, "count_include_pad");
  const Integers &kernel = sizes_attribute(op, operands, "kernel_size"), &stride = sizes_attribute(op, operands, "stride"),
                 &padding = sizes_attribute(op, operands, "padding");
  for (std::size_t i = 0; i < kernel.size(); ++i) {
    require(kernel[i] >= 1 && stride[i] >= 1, op, operands, "kernel and stride must be at least 1");
    require(padding[i] >= 0 && padding[i] <= kernel[i] / 2, op, operands, "padding must be at most half of the kernel");
    std::int64_t& size = x.shape[2 + i];
    const std::int64_t room = size + 2 * padding[i] - kernel[i];
    require(room >= 0, op, operands, "the window is larger than the padded image");
    std::int64_t count = (room + (ceil ? stride[i] - 1 : 0)) / stride[i] + 1;
    if (ceil && (count - 1) * stride[i] >= size + padding[i]) --count;
    size = count;
  }
  return x;
}

// x -> y
std::vector<TensorType> infer_pool(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  return {pooled(op, operands, operands[0])};
}

// (dy, x) -> dx
std::vector<TensorType> infer_pool_backward(const Op& op, Types operands) {
  require_count(op, operands, 2, 2);
  require(operands[0] == pooled(op, operands, operands[1]), op, operands, "dy does not fit to x");
  return {operands[1]};
}

TensorType resized(const Op& op, Types operands, TensorType x) {
  require_resampled(op, operands, x);
  const Integers& size = sizes_attribute(op, operands, "output_size");
  require(std::ranges::all_of(size, [](std::int64_t n) { return n >= 1; }), op, operands, "output_size must be at least 1");
  std::ranges::copy(size, x.shape.begin() + 2);
  return x;
}

// x -> y
std::vector<TensorType> infer_upsample(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  return {resized(op, operands, operands[0])};
}

// dy -> dx[input_size]
std::vector<TensorType> infer_upsample_backward(const Op& op, Types operands) {
  require_count(op, operands, 1, 1);
  const TensorType x{operands[0].dtype, attribute<Integers>(op, "input_size")};
  require_shape(op, operands, x.shape);
  require(operands[0] == resized(op, operands, x), op, operands, "dy does not fit to input_size");
  return {x};
}

Tensors pool_vjp(const VjpArguments& a) {
  return {emit(a.op.name + "_backward", {a.cotangents[0], a.operands[0]}, a.op.attributes)};
}

Tensors upsample_vjp(const VjpArguments& a) {
  return {emit(a.op.name + "_backward", {a.cotangents[0]}, with(a.op.attributes, "input_size", a.operands[0].shape()))};
}

// Images and channels are cut, places are not.
DimNumbers image_numbers(const LayoutSite& site) {
  const std::string dims = "nc" + std::string(resampled_dims(site.op), 'H');
  return numbers_of(dims + "->" + dims, site);
}

// Flops: one for each place of a window.
double window_flops(const Op& op, const TensorType& y) {
  double flops = static_cast<double>(y.elements());
  for (const std::int64_t size : attribute<Integers>(op, "kernel_size")) flops *= static_cast<double>(size);
  return flops;
}
double flops_pool(const Op& op, Types, Types results) {
  return window_flops(op, results[0]);
}
double flops_pool_backward(const Op& op, Types operands, Types) {
  return window_flops(op, operands[0]);
}

// A multiplication and an addition for each neighbour that is weighed: two in each dim, four for cubic ones.
double neighbour_flops(const Op& op, const TensorType& y) {
  if (op.name.find("nearest") != std::string::npos) return 0;
  const double neighbours = op.name.find("cubic") != std::string::npos ? 16 : static_cast<double>(1 << resampled_dims(op));
  return 2 * neighbours * static_cast<double>(y.elements());
}
double flops_upsample(const Op& op, Types, Types results) {
  return neighbour_flops(op, results[0]);
}
double flops_upsample_backward(const Op& op, Types operands, Types) {
  return neighbour_flops(op, operands[0]);
}

constexpr OpDefinition pool(std::string_view name) {
  return {.name = name, .infer = infer_pool, .vjp = pool_vjp, .flops = flops_pool, .layout = by<image_numbers>};
}
constexpr OpDefinition pool_backward(std::string_view name) {
  return {.name = name, .infer = infer_pool_backward, .flops = flops_pool_backward, .layout = by<image_numbers>};
}
constexpr OpDefinition upsample(std::string_view name) {
  return {.name = name,
          .infer = infer_upsample,
          .vjp = upsample_vjp,
          .flops = flops_upsample,
          .layout = by<image_numbers>,
          .linear = Linearity::all};
}
constexpr OpDefinition upsample_backward(std::string_view name) {
  return {.name = name,
          .infer = infer_upsample_backward,
          .flops = flops_upsample_backward,
          .layout = by<image_numbers>,
          .local = local_shape<"input_size">,
          .linear = Linearity::all};
}

// The op of a mode for so many dims of places.
struct Interpolation {
  std::string_view mode;
  int dims;
  const char* op;
  bool aligns;  // whether it can align corners
};
constexpr Interpolation kInterpolations[] = {
    {"nearest", 1, "upsample_nearest1d", false},    {"nearest", 2, "upsample_nearest2d", false},
    {"nearest", 3, "upsample_nearest3d", false},    {"linear", 1, "upsample_linear1d", true},
    {"bilinear", 2, "upsample_bilinear2d", true},   {"bicubic", 2, "upsample_bicubic2d", true},
    {"trilinear", 3, "upsample_trilinear3d", true},
};

Tensor averaged(std::string_view op, Tensor x, Attributes windows, const AvgPoolOptions& options) {
  windows["ceil_mode"] = options.ceil_mode;
  windows["count_include_pad"] = options.count_include_pad;
  return emit(op, {x}, std::move(windows));
}

}  // namespace

std::span<const OpDefinition> resampling_ops() {
  static constexpr OpDefinition all[] = {
      pool("avg_pool2d"),
      pool_backward("avg_pool2d_backward"),
      pool("avg_pool3d"),
      pool_backward("avg_pool3d_backward"),
      upsample("upsample_nearest1d"),
      upsample_backward("upsample_nearest1d_backward"),
      upsample("upsample_nearest2d"),
      upsample_backward("upsample_nearest2d_backward"),
      upsample("upsample_nearest3d"),
      upsample_backward("upsample_nearest3d_backward"),
      upsample("upsample_linear1d"),
      upsample_backward("upsample_linear1d_backward"),
      upsample("upsample_bilinear2d"),
      upsample_backward("upsample_bilinear2d_backward"),
      upsample("upsample_bicubic2d"),
      upsample_backward("upsample_bicubic2d_backward"),
      upsample("upsample_trilinear3d"),
      upsample_backward("upsample_trilinear3d_backward"),
  };
  return all;
}

Tensor avg_pool1d(Tensor x, std::int64_t kernel, std::int64_t stride, const AvgPoolOptions& options) {
  const Attributes windows = {
      {"kernel_size", Integers{1, kernel}}, {"stride", Integers{1, stride}}, {"padding", Integers{0, options.padding}}};
  return squeeze(averaged("avg_pool2d", unsqueeze(x, -2), windows, options), -2);
}

Tensor avg_pool2d(Tensor x, std::int64_t kernel, std::int64_t stride, const AvgPoolOptions& options) {
  return averaged("avg_pool2d", x,
                  {{"kernel_size", Integers(2, kernel)}, {"stride", Integers(2, stride)}, {"padding", Integers(2, options.padding)}},
                  options);
}

Tensor avg_pool3d(Tensor x, std::int64_t kernel, std::int64_t stride, const AvgPoolOptions& options) {
  return averaged("avg_pool3d", x,
                  {{"kernel_size", Integers(3, kernel)}, {"stride", Integers(3, stride)}, {"padding", Integers(3, options.padding)}},
                  options);
}

Tensor interpolate(Tensor x, std::vector<std::int64_t> size, std::string_view mode, bool align_corners) {
  std::vector<std::string> modes;
  for (const Interpolation& entry : kInterpolations) {
    if (entry.dims != x.rank() - 2) continue;
    modes.emplace_back(entry.mode);
    if (entry.mode != mode) continue;
    if (align_corners && !entry.aligns) throw Error(concat("interpolate: mode ", quote(std::string(mode)), " has no corners to align"));
    Attributes attributes = {{"output_size", std::move(size)}};
    if (entry.aligns) attributes["align_corners"] = align_corners;
    return emit(entry.op, {x}, std::move(attributes));
  }
  throw Error(concat("interpolate: no mode ", quote(std::string(mode)), " for ", x.type().text()), {},
              modes.empty() ? "x must be [n, channels, ...] with one to three dims of places" : concat("modes: ", join(modes, ", ")));
}

}  // namespace penstock
